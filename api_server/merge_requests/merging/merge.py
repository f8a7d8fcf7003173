"""Merging: git makes the commits, and what follows from the moved target marks the merge request merged."""

import functools

import attrs

from api_server.code.refs import move_in
from api_server.git import new_commits
from api_server.git.commits import commit_data, commits_between
from api_server.git.errors import BranchMovedError, MergeConflictError, NothingToMergeError
from api_server.git.new_commits import NewCommit
from api_server.git.received_push import Push, RefUpdate
from api_server.git.ref_names import BRANCHES, NO_COMMIT
from api_server.git.references import branch
from api_server.merge_requests import queries as merge_requests
from api_server.merge_requests.acting import Actor
from api_server.merge_requests.changes import check_head
from api_server.merge_requests.mergeability import check_mergeability
from api_server.merge_requests.merging import queries
from api_server.merge_requests.merging.queries import MergeStatus
from api_server.merge_requests.queries import MergeRequest
from api_server.namespaces.resources import Project
from api_server.state.database import Executor
from api_server.web.context import DATABASE
from api_server.web.errors import ApiError, forbidden, invalid
from api_server.web.grounds import ChangedMeanwhile, Ground


@attrs.frozen(kw_only=True)
class Merge:
    """How to merge: `sha` is the head that the caller has seen, the messages are those of the merge commit and of the
    one commit in the place of all; None is as the merge request says, or as GitLab does it."""

    sha: str | None = None
    message: str | None = None
    remove_source_branch: bool | None = None
    squash: bool | None = None
    squash_message: str | None = None


async def merge(actor: Actor, iid: int, wanted: Merge) -> MergeRequest:
    """Merges exactly the head that was found mergeable, into the branch that was its target then: what it is judged on
    is held when git moves the target. Raises 403, and 405, 409 and 422 as GitLab words them; `ChangedMeanwhile`."""
    found = await judged(actor, iid, wanted.sha)
    status = await status_of(actor, found)
    require_mergeable(status)
    target = branch(actor.repository, found.target_branch)
    if target is None:
        raise invalid("Branch cannot be merged", status=422)
    try:
        new = await _new_target(actor, found, status, wanted, target.commit)
    except (MergeConflictError, NothingToMergeError) as refused:
        raise invalid("Branch cannot be merged", status=422) from refused
    updates = [RefUpdate(target.commit, new, BRANCHES + found.target_branch)]
    remove = (
        found.remove_source_branch if wanted.remove_source_branch is None else wanted.remove_source_branch
    )
    if remove and await _may_remove_source(actor, found):
        updates.append(RefUpdate(found.head_sha, NO_COMMIT, BRANCHES + found.source_branch))
    try:
        await move_in(actor.app, actor.database, actor.project.id, actor.user_id, Push(tuple(updates)))
    except BranchMovedError as moved:
        raise ChangedMeanwhile from moved
    return found


async def judged(actor: Actor, iid: int, seen_sha: str | None) -> MergeRequest:
    """The merge request, of which it is known whether git could merge it, and that the actor may. Raises 403, 409,
    `ChangedMeanwhile`."""
    database = actor.app[DATABASE]
    await check_mergeability(actor.app, await merge_requests.find(database, actor.project.id, iid))
    found = await merge_requests.find(database, actor.project.id, iid)
    if found.state == "opened" and found.mergeability == "unchecked":  # again: a branch has moved since
        raise ChangedMeanwhile
    _hold(actor, found)
    if not await may_merge(actor, found.target_branch):
        raise forbidden()
    check_head(found, seen_sha)
    return found


def _hold(actor: Actor, found: MergeRequest) -> None:
    """The merge request has to be the same, and stays locked, when the target moves: but for what is noted of it
    meanwhile (`_new_target`). First of all grounds, so that the others are read under its lock."""

    async def read(executor: Executor) -> MergeRequest:
        row = await merge_requests.lock_with_project(executor, found.id)
        return attrs.evolve(row, squash=found.squash, squash_commit_sha=found.squash_commit_sha)

    actor.grounds.add(Ground((), found, read))


async def may_merge(actor: Actor, branch_name: str) -> bool:
    """Whether the actor may put commits into the branch, by merging or by pushing."""
    rules = await actor.protection(branch_name)
    role, admin = actor.project.role, actor.project.admin
    return rules.may_merge(role, admin=admin) or rules.may_push(role, admin=admin)


async def status_of(actor: Actor, found: MergeRequest) -> MergeStatus:
    """What stands in the way, if anything does, which the actor is judged on."""
    status = await queries.merge_status(actor.app[DATABASE], found.id)
    actor.grounds.add(Ground((), status, functools.partial(queries.merge_status, merge_request_id=found.id)))
    return status


def require_mergeable(status: MergeStatus) -> None:
    """Raises 405, and 422 for conflicts."""
    if status.detailed_merge_status == "conflict":
        raise invalid("Branch cannot be merged", status=422)
    if status.detailed_merge_status != "mergeable":
        raise ApiError(
            405,
            {
                "message": "405 Method Not Allowed",
                "detailed_merge_status": status.detailed_merge_status,
            },
            {"Allow": "GET, HEAD"},
        )


async def _new_target(
    actor: Actor, found: MergeRequest, status: MergeStatus, wanted: Merge, target: str
) -> str:
    """Where the target branch is to stand, by the project's method: at a commit that exists already."""
    source = found.head_sha
    if _squashes(found, status, wanted):
        source = await _squashed(actor, found, wanted, target)
        await _note_squash(actor, found, source)
    if status.merge_method == "ff":
        return source
    message = wanted.message or default_message(actor.project, found)
    commit = NewCommit(message, actor.person, actor.person)
    return await new_commits.merge(actor.repository, source, target, commit)


async def _note_squash(actor: Actor, found: MergeRequest, sha: str) -> None:
    """Written down before git moves anything, so that whoever settles that knows what has been merged."""
    async with actor.app[DATABASE].transaction() as transaction:
        await queries.note_squash(transaction, found.id, found.head_sha, sha)
    read = functools.partial(queries.squash_noted, merge_request_id=found.id)
    actor.grounds.add(Ground((), sha, read))


def _squashes(found: MergeRequest, status: MergeStatus, wanted: Merge) -> bool:
    if status.squash_option in ("always", "never"):
        return status.squash_option == "always"
    return found.squash if wanted.squash is None else wanted.squash


async def _squashed(actor: Actor, found: MergeRequest, wanted: Merge, target: str) -> str:
    """One commit on top of the target with all that the source brings, by the author of the merge request; the source
    itself where it is just that."""
    repository, message = actor.repository, wanted.squash_message or found.title
    shas = await commits_between(repository, target, found.head_sha, 2)
    if len(shas) == 1 and commit_data(repository, shas[0])["message"].strip() == message.strip():
        return found.head_sha
    author = await queries.author_of(actor.app[DATABASE], found.id)
    person = attrs.evolve(actor.person, name=author.name, email=author.email) if author else actor.person
    return await new_commits.squash(
        repository, found.head_sha, target, NewCommit(message, person, actor.person)
    )


async def _may_remove_source(actor: Actor, found: MergeRequest) -> bool:
    """Not where the branch is protected, the default one, or has moved on."""
    rules = await actor.protection(found.source_branch)
    source = branch(actor.repository, found.source_branch)
    return (
        not rules.protected
        and found.source_branch != actor.project.default_branch
        and source is not None
        and source.commit == found.head_sha
    )


def default_message(project: Project, found: MergeRequest) -> str:
    """As GitLab writes it."""
    return (
        f"Merge branch '{found.source_branch}' into '{found.target_branch}'\n\n{found.title}\n\n"
        f"See merge request {project.full_path}!{found.iid}"
    )
