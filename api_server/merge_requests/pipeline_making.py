"""The pipelines that opening a merge request and pushing to it make: queued in the transaction of that."""

import uuid
from typing import Any

import structlog
from aiohttp import web

from api_server.ci.pipelines import creation, transitions
from api_server.ci.pipelines.creation import NotMade, Wanted, maker
from api_server.ci.pipelines.creation_queries import MergeRequest, find_merge_request
from api_server.merge_requests.changes import head_ref
from api_server.merge_requests.events import MERGE_REQUEST_LISTENERS, MergeRequestEvent
from api_server.state.database import Transaction
from api_server.state.queue import QUEUE, enqueue
from api_server.web.context import DATABASE, App

log = structlog.get_logger(__name__)

CREATE_PIPELINE = "create_merge_request_pipeline"


def setup(app: web.Application) -> None:
    """Has merge requests of this application get their pipelines."""

    async def create(**queued: Any) -> None:
        await make_pipeline(app, **queued)

    app[MERGE_REQUEST_LISTENERS].append(_react)
    app[QUEUE].add(CREATE_PIPELINE, create, attempts=5)


async def _react(transaction: Transaction, event: MergeRequestEvent) -> None:
    """Queues a pipeline where the merge request is new, or has a new head."""
    if event.user_id is None or (event.action != "open" and event.old_head is None):
        return
    found = await find_merge_request(transaction, event.merge_request_id)
    if found is not None:
        await enqueue(
            transaction,
            CREATE_PIPELINE,
            merge_request_id=found.id,
            head_sha=found.head_sha,
            user_id=event.user_id,
            origin=uuid.uuid4().hex,
        )


async def make_pipeline(app: App, merge_request_id: int, head_sha: str, user_id: int, origin: str) -> None:
    """Makes what `_react` has queued, where the file asks for it, unless there is another head by now, which has one of
    its own; and cancels what it makes superfluous."""
    found = await find_merge_request(app[DATABASE], merge_request_id)
    if found is None or found.state != "opened" or found.mergeability == "no_commits":
        return
    if found.head_sha != head_sha:
        return
    wanted = wanted_for(found, user_id, origin)
    try:
        pipeline_id = await creation.make_with_rights(maker(app), wanted)
    except NotMade as refused:
        reason = "; ".join(refused.errors)
        log.info("no pipeline for a merge request", merge_request_id=found.id, reason=reason)
    else:
        now = await find_merge_request(app[DATABASE], merge_request_id)
        await transitions.cancel_superseded(app[DATABASE], pipeline_id, None if now is None else now.head_sha)


def wanted_for(found: MergeRequest, user_id: int, origin: str | None = None) -> Wanted:
    """What is asked for in the name of a merge request; `origin` makes it once."""
    return Wanted(
        project_id=found.project_id,
        ref=head_ref(found.iid),
        sha=found.head_sha,
        source="merge_request_event",
        user_id=user_id,
        origin=origin,
        merge_request=found,
    )
