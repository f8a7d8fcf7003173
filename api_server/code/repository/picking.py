"""`/repository/commits/:sha/cherry_pick` and `/revert`: a commit once more on another branch, or undone."""

from collections.abc import Awaitable, Callable

import attrs
from aiohttp import web

from api_server.code.repository import committing, entities
from api_server.code.repository.access import opened, url_of
from api_server.code.repository.finding import branch_named, commit_named
from api_server.git import commits, picking
from api_server.git.errors import BranchMovedError, MergeConflictError, NothingToMergeError
from api_server.git.new_commits import NewCommit
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import BRANCHES
from api_server.git.repositories import Repository
from api_server.namespaces.projects.access import project
from api_server.namespaces.projects.project import Project
from api_server.web import context
from api_server.web.access import Role
from api_server.web.answers import json_value
from api_server.web.errors import ApiError, invalid
from api_server.web.params import Description
from api_server.web.routes import Routes

routes = Routes()

_COMMIT = "/projects/{id}/repository/commits/{sha}"


@attrs.frozen(kw_only=True)
class Revert:
    id: str
    sha: str
    branch: str = attrs.field(metadata={"present": True})
    dry_run: bool = False


@attrs.frozen(kw_only=True)
class CherryPick(Revert):
    message: Description | None = None


@attrs.frozen(kw_only=True)
class _Deed:
    """What is done to a branch with a commit: the tree that comes of it, and how a refusal calls that."""

    tree: Callable[[Repository, str, str], Awaitable[str]]
    verb: str
    done: str


_CHERRY_PICK = _Deed(tree=picking.cherry_picked, verb="cherry-pick", done="cherry-picked")
_REVERT = _Deed(tree=picking.reverted, verb="revert", done="reverted")


@routes.post(f"{_COMMIT}/cherry_pick", access=project(Role.DEVELOPER, opens="repository"))
async def cherry_pick(request: web.Request, wanted: CherryPick, found: Project) -> web.Response:
    """By its author, with a line that names the commit unless there is a `message`."""
    repository, sha = await _picked(request, found, wanted)
    said = commits.commit_data(repository, sha)["message"].rstrip("\n")
    message = wanted.message or f"{said}\n\n(cherry picked from commit {sha})"
    author = picking.author_of(repository, sha)
    commit = NewCommit(message, author, committing.acting_person(request))
    return await _done(request, found, wanted, _CHERRY_PICK, sha, commit)


@routes.post(f"{_COMMIT}/revert", access=project(Role.DEVELOPER, opens="repository"))
async def revert(request: web.Request, wanted: Revert, found: Project) -> web.Response:
    repository, sha = await _picked(request, found, wanted)
    title = commits.commit_data(repository, sha)["title"]
    who = committing.acting_person(request)
    commit = NewCommit(f'Revert "{title}"\n\nThis reverts commit {sha}', who, who)
    return await _done(request, found, wanted, _REVERT, sha, commit)


async def _picked(request: web.Request, found: Project, wanted: Revert) -> tuple[Repository, str]:
    """The repository, and the commit that is named. Raises 403 for a branch to which the caller may not push, 404."""
    await committing.check_may_push(request, found, wanted.branch)
    repository = await opened(request, found)
    return repository, commit_named(repository, wanted.sha)


async def _done(
    request: web.Request, found: Project, wanted: Revert, deed: _Deed, sha: str, commit: NewCommit
) -> web.Response:
    """The new commit, 201; or for a `dry_run` that there would be one. Raises 400 in GitLab's words."""
    repository = await opened(request, found)
    branch = branch_named(repository, wanted.branch)
    most = context.settings(request).commit_max_files
    for one in (branch.commit, sha):
        await committing.check_files(repository, one, most)
    try:
        tree = await deed.tree(repository, sha, branch.commit)
        if wanted.dry_run:
            return json_value({"dry_run": "success"})
        made = await picking.commit_tree(repository, tree, commit, branch.commit)
        await committing.move(request, found, RefUpdate(branch.commit, made, BRANCHES + branch.name))
    except MergeConflictError:
        raise _refused(deed, "conflict", dry_run=wanted.dry_run) from None
    except NothingToMergeError:
        raise _refused(deed, "empty", dry_run=wanted.dry_run) from None
    except BranchMovedError as moved:
        raise invalid(str(moved)) from None
    return json_value(entities.commit(repository, made, url_of(request, found)), status=201)


def _refused(deed: _Deed, code: str, *, dry_run: bool) -> ApiError:
    text = (
        f"Sorry, we cannot {deed.verb} this commit automatically. This commit may already have been {deed.done}, "
        "or a more recent commit may have updated some of its content."
    )
    return ApiError(400, {"message": text, "error_code": code, **({"dry_run": "error"} if dry_run else {})})
