"""A commit once more on another branch, or undone there; what cannot be done is told in GitLab's words."""

from collections.abc import Awaitable, Callable

import attrs
from aiohttp import web

from api_server.code.repository import committing
from api_server.code.repository.access import opened
from api_server.code.repository.finding import branch_named, commit_named
from api_server.git import commits, new_commits
from api_server.git.errors import BranchMovedError, MergeConflictError, NothingToMergeError
from api_server.git.new_commits import NewCommit
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import BRANCHES
from api_server.git.repositories import Repository
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.errors import ApiError, invalid


@attrs.frozen(kw_only=True)
class Deed:
    """What is done with a commit: the tree that comes of it, what is said of it, and how refusals call it."""

    tree: Callable[[Repository, str, str], Awaitable[str]]
    commit: Callable[[web.Request, Repository, str], NewCommit]
    verb: str
    done: str


def _picked(request: web.Request, repository: Repository, sha: str) -> NewCommit:
    """By its author, naming the commit."""
    said = commits.commit_data(repository, sha)["message"].rstrip("\n")
    message = f"{said}\n\n(cherry picked from commit {sha})"
    return NewCommit(message, new_commits.author_of(repository, sha), committing.acting_person(request))


def _undone(request: web.Request, repository: Repository, sha: str) -> NewCommit:
    title = commits.commit_data(repository, sha)["title"]
    who = committing.acting_person(request)
    return NewCommit(f'Revert "{title}"\n\nThis reverts commit {sha}', who, who)


CHERRY_PICK = Deed(tree=new_commits.cherry_picked, commit=_picked, verb="cherry-pick", done="cherry-picked")
REVERT = Deed(tree=new_commits.reverted, commit=_undone, verb="revert", done="reverted")


async def do(
    request: web.Request,
    project: Project,
    deed: Deed,
    named: str,
    branch_name: str,
    *,
    message: str | None = None,
    dry_run: bool,
) -> str | None:
    """The SHA of the new commit on the branch; None of a `dry_run`, after which there could be one.

    Raises 400 in GitLab's words, 403 where the caller may not push, 404.
    """
    await committing.check_may_push(request, project, branch_name)
    repository = await opened(request, project)
    sha, branch = commit_named(repository, named), branch_named(repository, branch_name)
    for one in (branch.commit, sha):
        await committing.check_files(repository, one, context.settings(request).commit_max_files)
    try:
        tree = await deed.tree(repository, sha, branch.commit)
        if dry_run:
            return None
        commit = deed.commit(request, repository, sha)
        commit = attrs.evolve(commit, message=message or commit.message)
        made = await new_commits.commit_tree(repository, tree, commit, branch.commit)
        await committing.move(request, project, RefUpdate(branch.commit, made, BRANCHES + branch.name))
    except MergeConflictError:
        raise _refused(deed, "conflict", dry_run=dry_run) from None
    except NothingToMergeError:
        raise _refused(deed, "empty", dry_run=dry_run) from None
    except BranchMovedError as moved:
        raise invalid(str(moved)) from None
    return made


def _refused(deed: Deed, code: str, *, dry_run: bool) -> ApiError:
    text = (
        f"Sorry, we cannot {deed.verb} this commit automatically. This commit may already have been {deed.done}, "
        "or a more recent commit may have updated some of its content."
    )
    return ApiError(400, {"message": text, "error_code": code, **({"dry_run": "error"} if dry_run else {})})
