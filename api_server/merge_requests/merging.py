"""Checking whether merge requests can be merged; merging them, at once or automatically later; and rebasing
in the background."""

import datetime
import functools
from contextlib import suppress
from typing import Any

import attrs
import orjson
import structlog

from api_server.ci.pipelines.transitions import FOLLOW_AWAITED
from api_server.code.refs import move_in
from api_server.git import new_commits
from api_server.git.commits import Person, commit_data, commits_between, merge_base
from api_server.git.errors import (
    BranchMovedError,
    MergeConflictError,
    NothingToMergeError,
    StorageUnavailableError,
    TooManyCommitsError,
    TooManyFilesError,
)
from api_server.git.new_commits import NewCommit
from api_server.git.received_push import Push, RefUpdate
from api_server.git.ref_moves import set_internal_ref
from api_server.git.ref_names import BRANCHES, NO_COMMIT
from api_server.git.references import Branch, branch
from api_server.git.repositories import REPOSITORIES, Repository
from api_server.merge_requests import merging_queries, queries
from api_server.merge_requests.changes import (
    MERGE_REQUEST_LISTENERS,
    MergeRequestEvent,
    ProjectActor,
    acting_later,
    check_head,
    merge_ref,
)
from api_server.merge_requests.heads import mergeability
from api_server.merge_requests.merging_queries import MergeStatus
from api_server.merge_requests.queries import MergeRequest
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state.database import Executor, Transaction
from api_server.state.errors import LockNotAvailable
from api_server.state.preconditions import ChangedMeanwhile, Precondition
from api_server.state.queue import enqueue
from api_server.web.errors import ApiError, conflict, forbidden, invalid

#: Counting stops here.
MAX_DIVERGED = 1000


async def check_mergeability(services: Services, merge_request: MergeRequest) -> None:
    """Check in git whether the merge request can be merged, unless this has been done since a branch moved.
    Raise `StorageUnavailableError`."""
    if merge_request.state != "opened" or merge_request.mergeability != "unchecked":
        return
    repository = services[REPOSITORIES].open(merge_request.project_id)
    source, target = (
        branch(repository, merge_request.source_branch),
        branch(repository, merge_request.target_branch),
    )
    if source is None or target is None:
        answer, fast_forward = "no_commits", False
    else:
        base_sha = await merge_base(repository, target.commit, merge_request.head_sha)
        answer = await mergeability(repository, merge_request.head_sha, target.commit, base_sha)
        fast_forward = base_sha == target.commit
    # Not a transaction of the request: no decision depends on the result.
    async with services.shared.database.transaction() as transaction:
        await merging_queries.set_mergeability(transaction, merge_request, answer, fast_forward=fast_forward)


async def try_mergeability(services: Services, merge_request: MergeRequest) -> None:
    """Check like `check_mergeability`, for a caller who only reads: with a full disk the state remains
    unchecked."""
    with suppress(StorageUnavailableError):
        await check_mergeability(services, merge_request)


async def diverged_commits(repository: Repository, merge_request: MergeRequest) -> int:
    """Return the number of commits that the target has and the source has not; 0 without a target."""
    target = branch(repository, merge_request.target_branch)
    if target is None:
        return 0
    return len(await commits_between(repository, merge_request.head_sha, target.commit, MAX_DIVERGED))


@attrs.frozen(kw_only=True)
class Merge:
    """Options of a merge: `sha` is the head that the caller has seen; the messages are those of the merge
    commit and of the squash commit. None means the merge request's own option, or GitLab's default."""

    sha: str | None = None
    message: str | None = None
    remove_source_branch: bool | None = None
    squash: bool | None = None
    squash_message: str | None = None


async def merge(actor: ProjectActor, iid: int, params: Merge) -> MergeRequest:
    """Merge exactly the head that was found mergeable, into the branch that was its target then: the
    preconditions are locked when git moves the target. Raise 403, 405, 409 and 422 in GitLab's words, and
    `ChangedMeanwhile`."""
    merge_request = await mergeable(actor, iid, params.sha)
    status = await status_of(actor, merge_request)
    require_mergeable(status)
    target = branch(actor.repository, merge_request.target_branch)
    if target is None:
        raise invalid("Branch cannot be merged", status=422)
    try:
        new = await _new_target(actor, merge_request, status, params, target.commit)
    except (MergeConflictError, NothingToMergeError) as refused:
        raise invalid("Branch cannot be merged", status=422) from refused
    updates = [RefUpdate(target.commit, new, BRANCHES + merge_request.target_branch)]
    remove = (
        merge_request.remove_source_branch
        if params.remove_source_branch is None
        else params.remove_source_branch
    )
    if remove and await _may_remove_source(actor, merge_request):
        updates.append(RefUpdate(merge_request.head_sha, NO_COMMIT, BRANCHES + merge_request.source_branch))
    try:
        await move_in(actor.services, actor.database, actor.project.id, actor.user_id, Push(tuple(updates)))
    except BranchMovedError as moved:
        raise ChangedMeanwhile from moved
    return merge_request


async def mergeable(actor: ProjectActor, iid: int, sha: str | None) -> MergeRequest:
    """Return the merge request after checking that the actor may merge it, with its mergeability checked in
    git. Raise 403, 409, `ChangedMeanwhile`."""
    database = actor.services.database
    await check_mergeability(actor.services, await queries.find(database, actor.project.id, iid))
    merge_request = await queries.find(database, actor.project.id, iid)
    # If it is unchecked again, a branch has moved since.
    if merge_request.state == "opened" and merge_request.mergeability == "unchecked":
        raise ChangedMeanwhile
    _hold(actor, merge_request)
    if not await may_merge(actor, merge_request.target_branch):
        raise forbidden()
    check_head(merge_request, sha)
    return merge_request


def _hold(actor: ProjectActor, merge_request: MergeRequest) -> None:
    """Require that the merge request is unchanged when the target moves, except for the squash recorded by
    `_new_target`, and lock it. This is the first precondition, so that the others are read under its lock."""

    async def read(executor: Executor) -> MergeRequest:
        row = await queries.lock_with_project(executor, merge_request.id)
        return attrs.evolve(
            row, squash=merge_request.squash, squash_commit_sha=merge_request.squash_commit_sha
        )

    actor.preconditions.add(Precondition((), merge_request, read))


async def may_merge(actor: ProjectActor, branch_name: str) -> bool:
    """Return whether the actor may add commits to the branch, by merging or by pushing."""
    rules = await actor.protection(branch_name)
    role, admin = actor.project.role, actor.project.admin
    return rules.may_update(role, admin=admin)


async def status_of(actor: ProjectActor, merge_request: MergeRequest) -> MergeStatus:
    """Return the reason why the merge request cannot be merged, if there is one, and record it as a
    precondition."""
    status = await merging_queries.merge_status(actor.services.database, merge_request.id)
    actor.preconditions.add(
        Precondition(
            (), status, functools.partial(merging_queries.merge_status, merge_request_id=merge_request.id)
        )
    )
    return status


def require_mergeable(status: MergeStatus) -> None:
    """Raise 405, and 422 for conflicts."""
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
    actor: ProjectActor, merge_request: MergeRequest, status: MergeStatus, params: Merge, target: str
) -> str:
    """Return the new head of the target branch, by the project's method; the commit exists already."""
    source = merge_request.head_sha
    if _squashes(merge_request, status, params):
        source = await _squashed(actor, merge_request, params, target)
        await _note_squash(actor, merge_request, source)
    if status.merge_method == "ff":
        return source
    message = params.message or default_message(actor.project, merge_request)
    commit = NewCommit(message, actor.person, actor.person)
    return await new_commits.merge(actor.repository, source, target, commit)


async def _note_squash(actor: ProjectActor, merge_request: MergeRequest, sha: str) -> None:
    """Record the squash commit before git moves anything, so that the merge can be recognized when the target
    has moved."""
    async with actor.services.database.transaction() as transaction:
        await merging_queries.note_squash(transaction, merge_request.id, merge_request.head_sha, sha)
    read = functools.partial(merging_queries.recorded_squash, merge_request_id=merge_request.id)
    actor.preconditions.add(Precondition((), sha, read))


def _squashes(merge_request: MergeRequest, status: MergeStatus, params: Merge) -> bool:
    if status.squash_option in ("always", "never"):
        return status.squash_option == "always"
    return merge_request.squash if params.squash is None else params.squash


async def _squashed(actor: ProjectActor, merge_request: MergeRequest, params: Merge, target: str) -> str:
    """Return a commit on top of the target with all changes of the source, by the author of the merge
    request, or the source's head if that is already such a commit."""
    repository, message = actor.repository, params.squash_message or merge_request.title
    shas = await commits_between(repository, target, merge_request.head_sha, 2)
    if len(shas) == 1 and commit_data(repository, shas[0])["message"].strip() == message.strip():
        return merge_request.head_sha
    author = await merging_queries.author_of(actor.services.database, merge_request.id)
    person = attrs.evolve(actor.person, name=author.name, email=author.email) if author else actor.person
    return await new_commits.squash(
        repository, merge_request.head_sha, target, NewCommit(message, person, actor.person)
    )


async def _may_remove_source(actor: ProjectActor, merge_request: MergeRequest) -> bool:
    """Return whether the source branch may be removed: it must not be protected or the default branch, and
    must not have moved on."""
    rules = await actor.protection(merge_request.source_branch)
    source = branch(actor.repository, merge_request.source_branch)
    return (
        not rules.protected
        and merge_request.source_branch != actor.project.default_branch
        and source is not None
        and source.commit == merge_request.head_sha
    )


def default_message(project: Project, merge_request: MergeRequest) -> str:
    """Return GitLab's default message of a merge commit."""
    return (
        f"Merge branch '{merge_request.source_branch}' into '{merge_request.target_branch}'\n\n"
        f"{merge_request.title}\n\nSee merge request {project.full_path}!{merge_request.iid}"
    )


log = structlog.get_logger(__name__)

MERGE_WHEN_READY = "merge_when_ready"
#: Obstacles with which automatic merging can be requested: they can disappear without a change of the merge
#: request.
_ENDS_BY_ITSELF = frozenset(
    {"ci_still_running", "ci_must_pass", "status_checks_must_pass", "discussions_not_resolved"}
)
_SOON = datetime.timedelta(seconds=2)
_NOT_ALLOWED = "You are not allowed to merge this merge request"
#: Immediate attempts when others change the preconditions; after these, the queue tries again.
_MERGE_ATTEMPTS = 4


async def merge_or_wait(actor: ProjectActor, iid: int, params: Merge) -> MergeRequest:
    """Merge at once if nothing has to be waited for; otherwise merge later, on behalf of the actor. Raise the
    errors of `merge`."""
    merge_request = await mergeable(actor, iid, params.sha)
    status = await status_of(actor, merge_request)
    if not _waits(status):
        return await merge(actor, iid, params)
    if merge_request.mergeability != "mergeable":
        raise invalid("Branch cannot be merged", status=422)
    options = {
        "commit_message": params.message,
        "squash_commit_message": params.squash_message,
        "should_remove_source_branch": params.remove_source_branch,
        "squash": params.squash,
        "sha": merge_request.head_sha,
    }
    async with actor.database.transaction() as transaction:
        await merging_queries.set_auto_merge(
            transaction, merge_request.id, actor.user_id, orjson.dumps(options).decode(), squash=params.squash
        )
        await retry_auto_merge(transaction, merge_request.id)  # the pipeline may end before this is committed
    return merge_request


def _waits(status: MergeStatus) -> bool:
    detailed_status = status.detailed_merge_status
    waits_for_pipeline = status.pipeline_is_queued or status.pipeline in ("ci_still_running", "ci_must_pass")
    return detailed_status in _ENDS_BY_ITSELF or (detailed_status == "mergeable" and waits_for_pipeline)


async def cancel_auto_merge(actor: ProjectActor, iid: int) -> None:
    """Cancel automatic merging, for those who may merge and for the author. Raise 403, 405 if the merge
    request is not open, and 406 if automatic merging was not requested."""
    merge_request = await queries.find(actor.services.database, actor.project.id, iid)
    if merge_request.author_id != actor.user_id and not await may_merge(actor, merge_request.target_branch):
        raise forbidden()
    async with actor.database.transaction() as transaction:
        merge_request = await queries.lock(transaction, merge_request.id)
        if merge_request.state != "opened":
            raise ApiError(405, {"message": "405 Method Not Allowed"}, {"Allow": "GET, HEAD"})
        if merge_request.auto_merge is None:
            raise ApiError(406, {"message": "Can't cancel the automatic merge"})
        await merging_queries.end_auto_merge(transaction, merge_request.id, merge_request.merge_user_id)


async def retry_auto_merge(
    transaction: Transaction, merge_request_id: int, after: datetime.timedelta = datetime.timedelta(0)
) -> None:
    """Queue an attempt to merge if the merge request is to be merged automatically."""
    if await merging_queries.is_waiting(transaction, merge_request_id):
        await enqueue(
            transaction,
            MERGE_WHEN_READY,
            queueing_lock=f"{MERGE_WHEN_READY}:{merge_request_id}:{bool(after)}",
            at=transaction.now + after if after else None,
            merge_request_id=merge_request_id,
        )


async def merge_when_ready(services: Services, merge_request_id: int) -> None:
    """Merge with the current rights, checks and head. Raise LockNotAvailable if other changes were always
    faster."""
    for _ in range(_MERGE_ATTEMPTS):
        try:
            await _merge_if_ready(services, merge_request_id)
        except ChangedMeanwhile:
            continue
        return
    raise LockNotAvailable


async def _merge_if_ready(services: Services, merge_request_id: int) -> None:
    merge_request = await merging_queries.find_open(services.database, merge_request_id)
    if merge_request is None or merge_request.auto_merge is None:
        return
    actor = await acting_later(services, merge_request.project_id, merge_request.merge_user_id)
    if actor is None or not await may_merge(actor, merge_request.target_branch):
        async with services.database.transaction() as transaction:
            await merging_queries.end_auto_merge(
                transaction, merge_request.id, merge_request.merge_user_id, _NOT_ALLOWED
            )
        return
    # This is needed first, to find out whether it waits for its pipeline.
    await check_mergeability(services, merge_request)
    status = await merging_queries.merge_status(services.database, merge_request.id)
    if _waits(status):
        if status.pipeline_is_queued:  # the file may turn out to require no pipeline
            async with services.database.transaction() as transaction:
                await retry_auto_merge(transaction, merge_request.id, _SOON)
        return
    try:
        await merge(actor, merge_request.iid, _as_requested(orjson.loads(merge_request.auto_merge)))
    except ApiError as refused:
        log.info("nothing is merged by itself", merge_request_id=merge_request.id, reason=refused.body)


def _as_requested(options: dict[str, Any]) -> Merge:
    return Merge(
        sha=options["sha"],
        message=options["commit_message"],
        squash=options["squash"],
        squash_message=options["squash_commit_message"],
        remove_source_branch=options["should_remove_source_branch"],
    )


def setup(services: Services) -> None:
    async def run(merge_request_id: int) -> None:
        await merge_when_ready(services, merge_request_id)

    async def follow_pipeline(pipeline_id: int) -> None:
        for merge_request_id in await merging_queries.waiting_for(services.database, pipeline_id):
            await merge_when_ready(services, merge_request_id)

    async def run_rebase(merge_request_id: int, user_id: int, skip_ci: bool) -> None:
        await rebase(services, merge_request_id, user_id, skip_ci=skip_ci)

    async def changed(transaction: Transaction, event: MergeRequestEvent) -> None:
        if event.action == "update":
            await retry_auto_merge(transaction, event.merge_request_id)

    services.queue.add(MERGE_WHEN_READY, run, attempts=5)
    services.queue.add(FOLLOW_AWAITED, follow_pipeline, attempts=5)
    services.queue.add(REBASE, run_rebase, attempts=5)
    services[MERGE_REQUEST_LISTENERS].append(changed)


async def merge_commit(services: Services, project_id: int, iid: int, person: Person) -> str:
    """Return the SHA of the commit that merging would currently create, in the name of `person`. A ref beside
    the head's keeps it, so that it can be tried out. Raise 400 if the head cannot be merged into the
    target."""
    database = services.database
    await check_mergeability(services, await queries.find(database, project_id, iid))
    merge_request = await queries.find(database, project_id, iid)
    repository = services[REPOSITORIES].open(project_id)
    target = branch(repository, merge_request.target_branch)
    if merge_request.state != "opened" or merge_request.mergeability != "mergeable" or target is None:
        raise _not_mergeable()
    parents = [target.commit, merge_request.head_sha]
    ref = merge_ref(merge_request.iid)
    if ref in repository.references:
        existing = str(repository.references[ref].target)
        if commit_data(repository, existing)["parent_ids"] == parents:
            return existing
    message = f"Merge {merge_request.head_sha} into {target.commit}"
    try:
        sha = await new_commits.merge(
            repository, merge_request.head_sha, target.commit, NewCommit(message, person, person)
        )
    except (MergeConflictError, NothingToMergeError):
        raise _not_mergeable() from None
    async with database.transaction() as transaction:
        await queries.lock(transaction, merge_request.id)  # deleting the merge request removes the ref
        await set_internal_ref(repository, ref, sha)
    return sha


def _not_mergeable() -> Exception:
    return invalid("Merge request is not mergeable")


REBASE = "rebase_merge_request"
_CONFLICTS = "Rebase failed: Rebase locally, resolve all conflicts, then push the branch."
_REBASE_ATTEMPTS = 4


async def begin_rebase(actor: ProjectActor, iid: int, *, skip_ci: bool) -> None:
    """Queue a rebase. Raise 403 if the actor may not rebase, and 409 if the merge request is not open or a
    rebase is running."""
    merge_request = await queries.find(actor.services.database, actor.project.id, iid)
    if reason := await _rebase_refusal(
        actor, merge_request, branch(actor.repository, merge_request.source_branch)
    ):
        raise forbidden(reason)
    async with actor.database.transaction() as transaction:
        if not await merging_queries.begin_rebase(transaction, merge_request.id):
            raise conflict("409 Conflict: Resource lock")
        await enqueue(
            transaction, REBASE, merge_request_id=merge_request.id, user_id=actor.user_id, skip_ci=skip_ci
        )


async def _rebase_refusal(
    actor: ProjectActor, merge_request: MergeRequest, source: Branch | None
) -> str | None:
    """Return the reason why the actor may not replace the commits of the source branch, or None."""
    rules = await actor.protection(merge_request.source_branch)
    if source is None:
        return "Source branch does not exist"
    if not rules.may_push(actor.project.role, admin=actor.project.admin):
        return "Cannot push to source branch"
    if rules.protected and not rules.allow_force_push:
        return "Source branch is protected from force push"
    return None


async def rebase(services: Services, merge_request_id: int, user_id: int, *, skip_ci: bool) -> None:
    """Rebase with the user's current rights. Record the reason of a failure as the merge request's
    `merge_error`; raise LockNotAvailable if other changes were always faster."""
    for _ in range(_REBASE_ATTEMPTS):
        try:
            error = await _rebased(services, merge_request_id, user_id, skip_ci=skip_ci)
        except (ChangedMeanwhile, BranchMovedError):
            continue
        async with services.database.transaction() as transaction:
            await merging_queries.end_rebase(transaction, merge_request_id, error)
        return
    raise LockNotAvailable


async def _rebased(services: Services, merge_request_id: int, user_id: int, *, skip_ci: bool) -> str | None:
    """Rebase once, and return the reason of a failure, or None."""
    merge_request = await merging_queries.find_open(services.database, merge_request_id)
    if merge_request is None:
        return None
    actor = await acting_later(services, merge_request.project_id, user_id)
    if actor is None:
        return "Rebase failed: Cannot push to source branch"
    repository = actor.repository
    source, target = (
        branch(repository, merge_request.source_branch),
        branch(repository, merge_request.target_branch),
    )
    refusal = await _rebase_refusal(actor, merge_request, source)
    if refusal or source is None or target is None:
        return f"Rebase failed: {refusal or 'Target branch does not exist'}"
    try:
        new = await new_commits.rebase(repository, source.commit, target.commit, actor.person)
    except MergeConflictError:
        return _CONFLICTS
    except (TooManyCommitsError, TooManyFilesError) as problem:
        return f"Rebase failed: {problem}"
    if new != source.commit:
        update = RefUpdate(source.commit, new, BRANCHES + merge_request.source_branch)
        push = Push((update,), options=("ci.skip",) if skip_ci else ())
        await move_in(services, actor.database, actor.project.id, user_id, push)
    return None
