"""Writes down a version whenever a merge request is made, gets other commits, or another target."""

from aiohttp import web

from api_server.merge_requests.events import MERGE_REQUEST_LISTENERS, MergeRequestEvent
from api_server.merge_requests.versions import queries
from api_server.state.database import Transaction


def setup(app: web.Application) -> None:
    async def listener(transaction: Transaction, event: MergeRequestEvent) -> None:
        if event.action in ("open", "reopen") or event.old_head or "target_branch" in event.changes:
            await queries.record(transaction, event.merge_request_id)

    app[MERGE_REQUEST_LISTENERS].append(listener)
