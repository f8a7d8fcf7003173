"""Merging later, by itself: as soon as the head's pipeline has succeeded and nothing else stands in the way."""

import datetime
from typing import Any

import orjson
import structlog
from aiohttp import web

from api_server.ci.pipelines.transitions import FOLLOW_AWAITED
from api_server.merge_requests import queries as merge_requests
from api_server.merge_requests.acting import Actor, acting_later
from api_server.merge_requests.events import MERGE_REQUEST_LISTENERS, MergeRequestEvent
from api_server.merge_requests.mergeability import check_mergeability
from api_server.merge_requests.merging import queries
from api_server.merge_requests.merging.merge import Merge, judged, may_merge, merge, status_of
from api_server.merge_requests.merging.queries import MergeStatus
from api_server.merge_requests.queries import MergeRequest
from api_server.state.database import Transaction
from api_server.state.errors import LockNotAvailable
from api_server.state.queue import QUEUE, enqueue
from api_server.web.context import DATABASE, App
from api_server.web.errors import ApiError, forbidden, invalid
from api_server.web.grounds import ChangedMeanwhile

log = structlog.get_logger(__name__)

MERGE_WHEN_READY = "merge_when_ready"
#: What may stand in the way when somebody asks for it: it ends without anybody changing the merge request.
_ENDS_BY_ITSELF = frozenset(
    {"ci_still_running", "ci_must_pass", "status_checks_must_pass", "discussions_not_resolved"}
)
_SOON = datetime.timedelta(seconds=2)
_NOT_ALLOWED = "You are not allowed to merge this merge request"
#: How often it is judged at once while others change what it is judged on; the queue tries again.
_ATTEMPTS = 4


async def merge_or_wait(actor: Actor, iid: int, wanted: Merge) -> MergeRequest:
    """Merges at once what waits for nothing, and has the rest merged later, in the name of the actor. Raises as
    `merge`."""
    found = await judged(actor, iid, wanted.sha)
    status = await status_of(actor, found)
    if not _waits(status):
        return await merge(actor, iid, wanted)
    if found.mergeability != "mergeable":
        raise invalid("Branch cannot be merged", status=422)
    how = {
        "commit_message": wanted.message,
        "squash_commit_message": wanted.squash_message,
        "should_remove_source_branch": wanted.remove_source_branch,
        "squash": wanted.squash,
        "sha": found.head_sha,
    }
    async with actor.database.transaction() as transaction:
        await queries.set_auto_merge(
            transaction, found.id, actor.user_id, orjson.dumps(how).decode(), squash=wanted.squash
        )
        await look_again(transaction, found.id)  # the pipeline may have ended before this is committed
    return found


def _waits(status: MergeStatus) -> bool:
    obstacle = status.detailed_merge_status
    waits_for_pipeline = status.pipeline_is_queued or status.pipeline in ("ci_still_running", "ci_must_pass")
    return obstacle in _ENDS_BY_ITSELF or (obstacle == "mergeable" and waits_for_pipeline)


async def cancel(actor: Actor, iid: int) -> None:
    """By who may merge, and by the author. Raises 403, 405 where it is not open, and 406 where nobody has asked for
    it."""
    found = await merge_requests.find(actor.app[DATABASE], actor.project.id, iid)
    if found.author_id != actor.user_id and not await may_merge(actor, found.target_branch):
        raise forbidden()
    async with actor.database.transaction() as transaction:
        found = await merge_requests.lock(transaction, found.id)
        if found.state != "opened":
            raise ApiError(405, {"message": "405 Method Not Allowed"}, {"Allow": "GET, HEAD"})
        if found.auto_merge is None:
            raise ApiError(406, {"message": "Can't cancel the automatic merge"})
        await queries.end_auto_merge(transaction, found.id, found.merge_user_id)


async def look_again(
    transaction: Transaction, merge_request_id: int, after: datetime.timedelta = datetime.timedelta(0)
) -> None:
    """Has it merged, if it is to be merged by itself and nothing stands in the way any more."""
    if await queries.is_waiting(transaction, merge_request_id):
        await enqueue(
            transaction,
            MERGE_WHEN_READY,
            queueing_lock=f"{MERGE_WHEN_READY}:{merge_request_id}:{bool(after)}",
            at=transaction.now + after if after else None,
            merge_request_id=merge_request_id,
        )


async def merge_when_ready(app: App, merge_request_id: int) -> None:
    """Merges with the rights, checks and head that there are now. Raises LockNotAvailable where others were always
    faster."""
    for _ in range(_ATTEMPTS):
        try:
            await _merge_if_ready(app, merge_request_id)
        except ChangedMeanwhile:
            continue
        return
    raise LockNotAvailable


async def _merge_if_ready(app: App, merge_request_id: int) -> None:
    found = await queries.find_open(app[DATABASE], merge_request_id)
    if found is None or found.auto_merge is None:
        return
    actor = await acting_later(app, found.project_id, found.merge_user_id)
    if actor is None or not await may_merge(actor, found.target_branch):
        async with app[DATABASE].transaction() as transaction:
            await queries.end_auto_merge(transaction, found.id, found.merge_user_id, _NOT_ALLOWED)
        return
    await check_mergeability(app, found)  # before that it is not known whether it waits for its pipeline
    status = await queries.merge_status(app[DATABASE], found.id)
    if _waits(status):
        if status.pipeline_is_queued:  # it may turn out that the file asks for none
            async with app[DATABASE].transaction() as transaction:
                await look_again(transaction, found.id, _SOON)
        return
    try:
        await merge(actor, found.iid, _as_wanted(orjson.loads(found.auto_merge)))
    except ApiError as refused:
        log.info("nothing is merged by itself", merge_request_id=found.id, reason=refused.body)


def _as_wanted(how: dict[str, Any]) -> Merge:
    return Merge(
        sha=how["sha"],
        message=how["commit_message"],
        squash=how["squash"],
        squash_message=how["squash_commit_message"],
        remove_source_branch=how["should_remove_source_branch"],
    )


def setup(app: web.Application) -> None:
    async def run(merge_request_id: int) -> None:
        await merge_when_ready(app, merge_request_id)

    async def follow_pipeline(pipeline_id: int) -> None:
        for merge_request_id in await queries.waiting_for(app[DATABASE], pipeline_id):
            await merge_when_ready(app, merge_request_id)

    async def changed(transaction: Transaction, event: MergeRequestEvent) -> None:
        if event.action == "update":
            await look_again(transaction, event.merge_request_id)

    app[QUEUE].add(MERGE_WHEN_READY, run, attempts=5)
    app[QUEUE].add(FOLLOW_AWAITED, follow_pipeline, attempts=5)
    app[MERGE_REQUEST_LISTENERS].append(changed)
