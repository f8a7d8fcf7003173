"""Rebasing a source branch onto its target, in the background."""

from aiohttp import web

from api_server.code.refs import move_in
from api_server.git import new_commits
from api_server.git.errors import (
    BranchMovedError,
    MergeConflictError,
    TooManyCommitsError,
    TooManyFilesError,
)
from api_server.git.received_push import Push, RefUpdate
from api_server.git.ref_names import BRANCHES
from api_server.git.references import Branch, branch
from api_server.merge_requests import queries as merge_requests
from api_server.merge_requests.acting import Actor, acting_later
from api_server.merge_requests.merging import queries
from api_server.merge_requests.queries import MergeRequest
from api_server.state.errors import LockNotAvailable
from api_server.state.queue import QUEUE, enqueue
from api_server.web.context import DATABASE, App
from api_server.web.errors import conflict, forbidden
from api_server.web.grounds import ChangedMeanwhile

REBASE = "rebase_merge_request"
_CONFLICTS = "Rebase failed: Rebase locally, resolve all conflicts, then push the branch."
_ATTEMPTS = 4


async def begin(actor: Actor, iid: int, *, skip_ci: bool) -> None:
    """Queues it. Raises 403 where the actor may not, and 409 where it is not open or somebody else is at it."""
    found = await merge_requests.find(actor.app[DATABASE], actor.project.id, iid)
    if reason := await _refusal(actor, found, branch(actor.repository, found.source_branch)):
        raise forbidden(reason)
    async with actor.database.transaction() as transaction:
        if not await queries.begin_rebase(transaction, found.id):
            raise conflict("409 Conflict: Resource lock")
        await enqueue(transaction, REBASE, merge_request_id=found.id, user_id=actor.user_id, skip_ci=skip_ci)


async def _refusal(actor: Actor, found: MergeRequest, source: Branch | None) -> str | None:
    """Why the actor may not put other commits into the source branch."""
    rules = await actor.protection(found.source_branch)
    if source is None:
        return "Source branch does not exist"
    if not rules.may_push(actor.project.role, admin=actor.project.admin):
        return "Cannot push to source branch"
    if rules.protected and not rules.allow_force_push:
        return "Source branch is protected from force push"
    return None


async def rebase(app: App, merge_request_id: int, user_id: int, *, skip_ci: bool) -> None:
    """With the rights that the user has now. What keeps it from being done is the merge request's `merge_error`; raises
    LockNotAvailable where others were always faster."""
    for _ in range(_ATTEMPTS):
        try:
            error = await _rebased(app, merge_request_id, user_id, skip_ci=skip_ci)
        except (ChangedMeanwhile, BranchMovedError):
            continue
        async with app[DATABASE].transaction() as transaction:
            await queries.end_rebase(transaction, merge_request_id, error)
        return
    raise LockNotAvailable


async def _rebased(app: App, merge_request_id: int, user_id: int, *, skip_ci: bool) -> str | None:
    """What has gone wrong, if anything has."""
    found = await queries.find_open(app[DATABASE], merge_request_id)
    if found is None:
        return None
    actor = await acting_later(app, found.project_id, user_id)
    if actor is None:
        return "Rebase failed: Cannot push to source branch"
    repository = actor.repository
    source, target = branch(repository, found.source_branch), branch(repository, found.target_branch)
    refusal = await _refusal(actor, found, source)
    if refusal or source is None or target is None:
        return f"Rebase failed: {refusal or 'Target branch does not exist'}"
    try:
        new = await new_commits.rebase(repository, source.commit, target.commit, actor.person)
    except MergeConflictError:
        return _CONFLICTS
    except (TooManyCommitsError, TooManyFilesError) as problem:
        return f"Rebase failed: {problem}"
    if new != source.commit:
        update = RefUpdate(source.commit, new, BRANCHES + found.source_branch)
        push = Push((update,), options=("ci.skip",) if skip_ci else ())
        await move_in(app, actor.database, actor.project.id, user_id, push)
    return None


def setup(app: web.Application) -> None:
    async def run(merge_request_id: int, user_id: int, skip_ci: bool) -> None:
        await rebase(app, merge_request_id, user_id, skip_ci=skip_ci)

    app[QUEUE].add(REBASE, run, attempts=5)
