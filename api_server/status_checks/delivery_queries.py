"""Statements about deliveries as merge requests and callers see them: queueing, showing, sending again."""

import datetime
from collections.abc import Mapping
from typing import Any

import orjson

from api_server.merge_requests.events import MergeRequestEvent
from api_server.state.database import Executor, Transaction
from api_server.state.errors import NotFound
from api_server.state.listing import Listed, Listing, Page, one, read_sql

_ENTITIES = read_sql("api_server.status_checks")
_PAYLOAD = read_sql("api_server.status_checks", "payload.sql")["payload"]


def _queue(condition: str) -> str:
    return f"""
        INSERT INTO status_check_deliveries (action, check_id, merge_request_id, body, next_attempt_at, created_at)
        SELECT %(action)s, payloads.check_id, payloads.merge_request_id, payloads.body, %(now)s, %(now)s
        FROM ({_PAYLOAD} WHERE {condition}) payloads
    """


_APPLIES = """
    checks.id IN (SELECT applicable.id FROM applicable_status_checks(m.project_id, m.target_branch) applicable)
"""
QUEUE_EVENT = _queue(f"m.id = %(merge_request_id)s AND checks.paused_at IS NULL AND {_APPLIES}")
QUEUE_STATE = _queue("m.id = %(merge_request_id)s AND checks.id = %(check_id)s")
QUEUE_ALL_OPEN = _queue(f"checks.id = %(check_id)s AND m.state = 'opened' AND {_APPLIES}")


async def queue_event(transaction: Transaction, event: MergeRequestEvent) -> None:
    """To every check that applies, unless it is paused."""
    await transaction.run(
        QUEUE_EVENT,
        merge_request_id=event.merge_request_id,
        action=event.action,
        user_id=event.user_id,
        old_head=event.old_head,
        changes=orjson.dumps(_changes(event.changes)).decode(),
    )


async def queue_state(transaction: Transaction, check_id: int, merge_request_id: int, user_id: int) -> None:
    """The present state of a merge request to one check, paused or not: somebody asked for it."""
    await transaction.run(
        QUEUE_STATE, check_id=check_id, merge_request_id=merge_request_id, user_id=user_id, **_NO_EVENT
    )


async def queue_all_open(transaction: Transaction, check_id: int, user_id: int | None) -> None:
    """The present state of all open merge requests that a check applies to."""
    await transaction.run(QUEUE_ALL_OPEN, check_id=check_id, user_id=user_id, **_NO_EVENT)


_NO_EVENT = {"action": None, "old_head": None, "changes": "{}"}


def _changes(changes: Mapping[str, tuple[Any, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: {"previous": _shown(name, previous), "current": _shown(name, current)}
        for name, (previous, current) in changes.items()
    }


def _shown(name: str, value: Any) -> Any:
    return [{"title": label} for label in value] if name == "labels" else value


LISTING = Listing(
    _ENTITIES["delivery"],
    """
    SELECT deliveries.id FROM status_check_deliveries deliveries
    WHERE deliveries.check_id = %(check_id)s
        AND (%(status)s::text IS NULL OR deliveries.status = %(status)s)
    """,
)


async def list_deliveries(database: Executor, page: Page, **filters: Any) -> Listed:
    return await LISTING.read(database, page, **filters)


SHOW = one(
    _ENTITIES["delivery_with_attempts"],
    """
    SELECT deliveries.id FROM status_check_deliveries deliveries
    WHERE deliveries.id = %(id)s AND deliveries.check_id = %(check_id)s
    """,
)


async def show(database: Executor, check_id: int, delivery_id: int) -> str:
    """With the payload and every attempt. Raises NotFound."""
    return await database.entity(SHOW, id=delivery_id, check_id=check_id)


REDELIVER = """
    UPDATE status_check_deliveries SET status = 'queued', tries = 0, next_attempt_at = %(now)s, delivered_at = NULL
    WHERE id = %(id)s AND check_id = %(check_id)s
"""


async def redeliver(transaction: Transaction, check_id: int, delivery_id: int) -> None:
    """Queues it once more, as the same message. Raises NotFound."""
    if not await transaction.run(REDELIVER, id=delivery_id, check_id=check_id):
        raise NotFound


FORGET = """
    DELETE FROM status_check_deliveries WHERE created_at < %(before)s AND status <> 'queued'
"""


async def forget(transaction: Transaction, before: datetime.datetime) -> None:
    await transaction.run(FORGET, before=before)
