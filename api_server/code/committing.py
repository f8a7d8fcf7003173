"""Changes of a repository by the API: branches, tags and commits, each with all consequences of moved refs."""

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import attrs

from api_server.code import refs
from api_server.code.entities import branch_named, commit_named, tag_named
from api_server.code.protection import (
    NOT_TO_CREATE,
    protection_for,
    protections_of,
    refusal_of_tag,
    tag_protection_for,
)
from api_server.code.quotas import QUOTAS, QuotaExceeded
from api_server.code.reading import opened, reading
from api_server.git import commits, new_commits, ref_moves, references, trees
from api_server.git.commits import History, Person, history
from api_server.git.errors import (
    BranchMovedError,
    GitLimitError,
    InvalidActionError,
    InvalidNameError,
    InvalidPathError,
    MergeConflictError,
    NameTakenError,
    NothingToMergeError,
)
from api_server.git.new_commits import FileAction, NewCommit
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import BRANCHES, NO_COMMIT, TAGS, is_branch_name
from api_server.git.references import Branch
from api_server.git.repositories import REPOSITORIES, Repository
from api_server.namespaces.projects import CREATION_LISTENERS, ProjectCreated
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state.database import Transaction
from api_server.web.auth import Actor
from api_server.web.errors import ApiError, bad_request, conflict, forbidden, invalid
from api_server.web.routes import Role

Encoding = Literal["text", "base64"]
OneAction = Literal["create", "update", "delete"]


#: Why a caller may not delete a branch, in GitLab's words.
NOT_TO_DELETE = (
    "You are not allowed to delete protected branches from this project. "
    "Only a project maintainer or owner can delete a protected branch."
)


class EditedMeanwhile(Exception):
    """Another commit has changed the file since the caller read it."""


async def check_last_commits(
    services: Services,
    actor: Actor,
    repository: Repository,
    parent: str | None,
    actions: Sequence[FileAction],
    message_of: Callable[[Exception], str],
) -> None:
    """Raise 400 if the newest commit up to `parent` that changed a file is not the one that its action names.
    `message_of` returns the message. Raise 503 if finding that commit takes too long."""
    checked = [action for action in actions if action.last_commit_id and action.action != "create"]
    if not checked:
        return
    async with reading(services, actor):
        for action in checked:
            path = action.previous_path or action.path
            query = History(start=parent, path=path)
            newest = await history(repository, query, skip=0, limit=1) if parent else []
            if newest != [action.last_commit_id]:
                problem = EditedMeanwhile(f"The file has changed since you started editing it: {path}")
                raise invalid(message_of(problem))


async def create_branch(services: Services, actor: Actor, project: Project, name: str, ref: str) -> None:
    """Create a branch at `ref`.

    If `ref` is the default branch of an empty repository, that first gets a commit with a README, as in GitLab. Raise
    400 in GitLab's words, and the errors of `_check_may_create`.
    """
    repository = await opened(services, project)
    _check_new_branch(name)
    source = references.resolve(repository, ref)
    is_first = source is None and ref == project.default_branch and references.is_empty(repository)
    if source is None and not is_first:
        raise invalid(f"Invalid reference name: {ref}")
    await _check_may_create(services, actor, project, name, source.commit if source else None)
    commit = source.commit if source else await _first_commit(services, actor, project, repository)
    names = dict.fromkeys([project.default_branch, name] if is_first else [name])
    try:
        await move(
            services, actor, project, *(RefUpdate(NO_COMMIT, commit, BRANCHES + branch) for branch in names)
        )
    except NameTakenError:
        raise invalid("Branch already exists") from None


async def _check_may_create(
    services: Services, actor: Actor, project: Project, name: str, commit: str | None
) -> None:
    """Raise 403 if the caller may not create the branch: who may not push to it must be allowed to merge into it, and a
    protected branch must already contain the commit."""
    protection = await protection_for(services, project.id, name)
    if project.archived:
        raise forbidden()
    if protection.may_push(project.role, admin=project.admin):
        return
    if commit is None or not protection.may_merge(project.role, admin=project.admin):
        raise forbidden("You are not allowed to create protected branches on this project.")
    async with reading(services, actor):
        refs_with_it = await commits.refs_containing(await opened(services, project), commit, BRANCHES)
    bases = [ref.removeprefix(BRANCHES) for ref in refs_with_it]
    protections = await protections_of(services.database, project.id, bases)
    base = next((base for base in bases if protections[base].protected), None)
    if base is None or not (await protection_for(services, project.id, base)).protected:
        raise forbidden(
            "You can only use an existing protected branch ref as the basis of a new protected branch."
        )


async def _first_commit(services: Services, actor: Actor, project: Project, repository: Repository) -> str:
    """Create a commit with an empty README as the beginning of the default branch, and return its SHA. Raise 403."""
    await check_may_push(services, project, project.default_branch)
    person = acting_person(services, actor)
    readme = FileAction("create", "README.md", b"")
    return await new_commits.commit_files(
        repository, [readme], NewCommit("Add README.md", person, person), None
    )


async def delete_branch(services: Services, actor: Actor, project: Project, name: str) -> None:
    """Delete a branch.

    Raise 400 for the default branch, 403 in archived projects and below Maintainer for protected branches, 404, 409 if
    somebody else has just moved it.
    """
    repository = await opened(services, project)
    if project.archived:
        raise forbidden()
    branch = branch_named(repository, name)
    if name in (project.default_branch, references.default_branch(repository)):
        raise invalid("The default branch of a project cannot be deleted.")
    protection = await protection_for(services, project.id, name)
    if protection.protected and project.role < Role.MAINTAINER:
        raise forbidden(NOT_TO_DELETE)
    try:
        await move(services, actor, project, RefUpdate(branch.commit, NO_COMMIT, BRANCHES + name))
    except BranchMovedError as moved:
        raise conflict(str(moved)) from None


async def create_tag(
    services: Services, actor: Actor, project: Project, name: str, ref: str, message: str | None
) -> None:
    """Create a tag at `ref`, annotated if there is a message.

    Raise 400 in GitLab's words, 403 if the name is protected.
    """
    repository = await opened(services, project)
    if project.archived:
        raise forbidden()
    protection = await tag_protection_for(services, project.id, name)
    if not protection.may_create(project.role, admin=project.admin):
        raise forbidden(NOT_TO_CREATE)
    if problem := refusal_of_tag(project, name):
        raise invalid(problem)
    target = references.resolve(repository, ref)
    if target is None:
        raise invalid(f"Target {ref} is invalid")
    try:
        target_id = new_commits.new_tag_target(
            repository, name, target.commit, message, acting_person(services, actor)
        )
        await move(services, actor, project, RefUpdate(NO_COMMIT, target_id, TAGS + name))
    except NameTakenError:
        raise invalid(f"Tag {name} already exists") from None
    except InvalidNameError:
        raise invalid("Tag name invalid") from None


async def delete_tag(services: Services, actor: Actor, project: Project, name: str) -> None:
    """Delete a tag.

    Raise 403 in archived projects and for protected tags, 404, 409 if somebody else has just moved it.
    """
    repository = await opened(services, project)
    if project.archived:
        raise forbidden()
    tag = tag_named(repository, name)
    if not (await tag_protection_for(services, project.id, name)).may_delete(project.role):
        raise forbidden("You don't have access to delete the tag")
    try:
        await move(services, actor, project, RefUpdate(tag.target, NO_COMMIT, TAGS + name))
    except BranchMovedError as moved:
        raise conflict(str(moved)) from None


@attrs.frozen(kw_only=True)
class Change:
    """A commit to a branch. A branch that does not exist yet begins at `start_branch`."""

    branch: str
    commit_message: str
    author_name: str | None = None
    author_email: str | None = None
    start_branch: str | None = None


@attrs.frozen(kw_only=True)
class FileChange(Change):
    """A commit that changes one file."""

    action: OneAction
    path: str
    content: str = ""
    encoding: Encoding = "text"
    execute_filemode: bool | None = None
    last_commit_id: str | None = None


async def commit_file(services: Services, actor: Actor, project: Project, change: FileChange) -> str:
    """Commit the change, and return the SHA of the commit. Raise 400 in GitLab's words, 403 for protected branches."""
    content = None if change.action == "delete" else decoded(change.content, change.encoding)
    action = FileAction(
        change.action,
        change.path,
        content,
        executable=change.execute_filemode,
        last_commit_id=change.last_commit_id,
    )
    return await commit_files(
        services, actor, project, change, [action], lambda problem: _message(change, problem)
    )


async def commit_files(
    services: Services,
    actor: Actor,
    project: Project,
    change: Change,
    actions: Sequence[FileAction],
    message_of: Callable[[Exception], str] = str,
) -> str:
    """Commit several actions at once, like `commit_file`. `message_of` returns the refusal's message for an error."""
    repository = await opened(services, project)
    before = references.branch(repository, change.branch)
    if before is None:
        _check_new_branch(change.branch)
    await check_may_push(services, project, change.branch)
    start = before or _start(repository, change)
    parent = start.commit if start else None
    await check_last_commits(services, actor, repository, parent, actions, message_of)
    if parent is not None:
        await check_files(repository, parent, services.settings.commit_max_files)
    await _reserve_space(services, project, actions)
    try:
        sha = await new_commits.commit_files(repository, actions, _commit(services, actor, change), parent)
        old = before.commit if before else NO_COMMIT
        await move(services, actor, project, RefUpdate(old, sha, BRANCHES + change.branch))
    except (BranchMovedError, NameTakenError, InvalidActionError) as problem:
        raise invalid(message_of(problem)) from None
    return sha


async def _reserve_space(services: Services, project: Project, actions: Sequence[FileAction]) -> None:
    """Count the new bytes. Raise 400 if the repository would grow beyond the project's quota."""
    size = sum(len(action.content or b"") for action in actions)
    try:
        await services[QUOTAS].take(services.database, project.id, size)
    except QuotaExceeded as problem:
        raise invalid(
            "Your changes could not be committed, because this repository would exceed its size limit of "
            f"{problem.limit}"
        ) from None


def _check_new_branch(name: str) -> None:
    if not is_branch_name(name):
        raise invalid("Branch name is invalid")


async def check_files(repository: Repository, commit: str, limit: int) -> None:
    """Raise 400 if the tree has more than `limit` files. With a dozen objects, a tree can have any number of files."""
    try:
        await trees.paths(repository, commit, limit)
    except GitLimitError:
        raise invalid(f"The branch has more than {limit} files: change it by a push") from None


def _start(repository: Repository, change: Change) -> Branch | None:
    if references.is_empty(repository):
        return None
    start = references.branch(repository, change.start_branch) if change.start_branch else None
    if start is None:
        raise invalid("You can only create or edit files when you are on a branch")
    return start


def decoded(content: str, encoding: Encoding) -> bytes:
    """Return a file's bytes. Base64 may have line breaks, as Go's decoder allows. Raise 400."""
    if encoding == "text":
        return content.encode()
    try:
        return base64.b64decode(content.encode().translate(None, b"\r\n"), validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("content is not valid base64") from None


def acting_person(services: Services, actor: Actor) -> Person:
    """Return the caller as an author in git, at the present time."""
    return Person(actor.name, actor.email, int(services.now.timestamp()))


def _commit(services: Services, actor: Actor, change: Change) -> NewCommit:
    committer = acting_person(services, actor)
    name, email = change.author_name or committer.name, change.author_email or committer.email
    return NewCommit(change.commit_message, attrs.evolve(committer, name=name, email=email), committer)


def _message(change: FileChange, problem: Exception) -> str:
    if isinstance(problem, EditedMeanwhile):
        return {
            "create": str(problem),
            "update": "You are attempting to update a file that has changed since you started editing it.",
            "delete": "You are attempting to delete a file that has been previously updated.",
        }[change.action]
    if isinstance(problem, InvalidActionError) and not isinstance(problem, InvalidPathError):
        return {
            "create": "A file with this name already exists",
            "update": "A file with this name doesn't exist",
            "delete": "A file with this name doesn't exist",
        }[change.action]
    return str(problem)


async def check_may_push(services: Services, project: Project, branch: str) -> None:
    """Raise 403 if the caller may not push to the branch."""
    protection = await protection_for(services, project.id, branch)
    if project.archived or not protection.may_push(project.role, admin=project.admin):
        raise forbidden("You are not allowed to push into this branch")


async def move(services: Services, actor: Actor, project: Project, *updates: RefUpdate) -> None:
    """Move refs for the caller, with all consequences. Raise the errors of `refs.move`."""
    await refs.move(services, project.id, actor.user_id, *updates)


@attrs.frozen(kw_only=True)
class Replay:
    """A way to use an existing commit on a branch: functions that return the new tree and the new commit, and verbs
    for refusals."""

    tree: Callable[[Repository, str, str], Awaitable[str]]
    commit: Callable[[Person, Repository, str], NewCommit]
    verb: str
    past: str


def _picked(committer: Person, repository: Repository, sha: str) -> NewCommit:
    """Return a commit with the same author, and with the SHA of the original in its message."""
    original = commits.commit_data(repository, sha)["message"].rstrip("\n")
    message = f"{original}\n\n(cherry picked from commit {sha})"
    return NewCommit(message, new_commits.author_of(repository, sha), committer)


def _undone(committer: Person, repository: Repository, sha: str) -> NewCommit:
    title = commits.commit_data(repository, sha)["title"]
    return NewCommit(f'Revert "{title}"\n\nThis reverts commit {sha}', committer, committer)


CHERRY_PICK = Replay(tree=new_commits.cherry_picked, commit=_picked, verb="cherry-pick", past="cherry-picked")
REVERT = Replay(tree=new_commits.reverted, commit=_undone, verb="revert", past="reverted")


async def pick(
    services: Services,
    actor: Actor,
    project: Project,
    replay: Replay,
    revision: str,
    branch_name: str,
    *,
    message: str | None = None,
    dry_run: bool,
) -> str | None:
    """Apply the commit `revision` to the branch, or revert it there.

    Return the SHA of the new commit, or None for a `dry_run` that would succeed. Raise 400 in GitLab's words, 403 if
    the caller may not push, 404.
    """
    await check_may_push(services, project, branch_name)
    repository = await opened(services, project)
    sha, branch = commit_named(repository, revision), branch_named(repository, branch_name)
    for commit_sha in (branch.commit, sha):
        await check_files(repository, commit_sha, services.settings.commit_max_files)
    try:
        tree = await replay.tree(repository, sha, branch.commit)
        if dry_run:
            return None
        commit = replay.commit(acting_person(services, actor), repository, sha)
        commit = attrs.evolve(commit, message=message or commit.message)
        new_sha = await new_commits.commit_tree(repository, tree, commit, branch.commit)
        await move(services, actor, project, RefUpdate(branch.commit, new_sha, BRANCHES + branch.name))
    except MergeConflictError:
        raise _not_picked(replay, "conflict", dry_run=dry_run) from None
    except NothingToMergeError:
        raise _not_picked(replay, "empty", dry_run=dry_run) from None
    except BranchMovedError as moved:
        raise invalid(str(moved)) from None
    return new_sha


def _not_picked(replay: Replay, code: str, *, dry_run: bool) -> ApiError:
    text = (
        f"Sorry, we cannot {replay.verb} this commit automatically. This commit may already have been {replay.past}, "
        "or a more recent commit may have updated some of its content."
    )
    return ApiError(400, {"message": text, "error_code": code, **({"dry_run": "error"} if dry_run else {})})


def setup(services: Services) -> None:
    async def listener(transaction: Transaction, created: ProjectCreated) -> None:
        if created.begins_with_readme:
            await _begin_with_readme(services, transaction, created)

    services[CREATION_LISTENERS].append(listener)


async def _begin_with_readme(services: Services, transaction: Transaction, created: ProjectCreated) -> None:
    """Commit the README of a new project.

    Unlike other moves of refs, this one is not recorded beforehand: nobody knows the project until the transaction
    commits, and if it does not commit, the repository is removed.
    """
    repositories = services[REPOSITORIES]
    await repositories.create(created.id, created.default_branch)
    author = Person(created.author.name, created.author.email, int(transaction.now.timestamp()))
    readme = FileAction("create", "README.md", _readme_of(created).encode())
    commit = NewCommit("Initial commit", author, author)
    repository = repositories.open(created.id)
    sha = await new_commits.commit_files(repository, [readme], commit, None)
    await ref_moves.set_first_branch(repository, created.default_branch, sha)
    update = RefUpdate(NO_COMMIT, sha, BRANCHES + created.default_branch)
    await refs.follow(services, transaction, created.id, created.author.id, [update])


def _readme_of(created: ProjectCreated) -> str:
    return "\n\n".join(filter(None, [f"# {created.name}", created.description])) + "\n"
