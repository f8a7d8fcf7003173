"""Statements about deliveries: queueing, taking what is due, recording what came of it, showing it."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import orjson

from api_server.merge_requests.events import MergeRequestEvent
from api_server.state.database import Executor, Row, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql
from api_server.state.statements import Statement
from api_server.status_checks.sending import Outcome

_ENTITIES = read_sql("api_server.status_checks")
_PAYLOAD = read_sql("api_server.status_checks", "payload.sql")["payload"]

# --- queueing --------------------------------------------------------------------------------------------------------


def _queue(condition: str) -> str:
    return f"""
        INSERT INTO status_check_deliveries (action, check_id, merge_request_id, body)
        SELECT %(action)s, payloads.* FROM ({_PAYLOAD} WHERE {condition}) payloads
    """


QUEUE_EVENT = _queue(
    "m.id = %(merge_request_id)s AND checks.paused_at IS NULL AND status_check_applies(checks, m.target_branch)"
)
QUEUE_STATE = _queue("m.id = %(merge_request_id)s AND checks.id = %(check_id)s")
QUEUE_ALL_OPEN = _queue(
    "checks.id = %(check_id)s AND m.state = 'opened' AND status_check_applies(checks, m.target_branch)"
)


async def queue_event(transaction: Transaction, event: MergeRequestEvent) -> None:
    """To every check that applies, unless it is paused."""
    await transaction.row(
        QUEUE_EVENT,
        merge_request_id=event.merge_request_id,
        action=event.action,
        user_id=event.user_id,
        old_head=event.old_head,
        changes=orjson.dumps(_changes(event.changes)).decode(),
    )


async def queue_state(transaction: Transaction, check_id: int, merge_request_id: int, user_id: int) -> None:
    """The present state of a merge request to one check, paused or not: somebody asked for it."""
    await transaction.row(
        QUEUE_STATE, check_id=check_id, merge_request_id=merge_request_id, user_id=user_id, **_NO_EVENT
    )


async def queue_all_open(transaction: Transaction, check_id: int, user_id: int | None) -> None:
    """The present state of all open merge requests that a check applies to."""
    await transaction.row(QUEUE_ALL_OPEN, check_id=check_id, user_id=user_id, **_NO_EVENT)


_NO_EVENT = {"action": None, "old_head": None, "changes": "{}"}


def _changes(changes: Mapping[str, tuple[Any, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: {"previous": _shown(name, previous), "current": _shown(name, current)}
        for name, (previous, current) in changes.items()
    }


def _shown(name: str, value: Any) -> Any:
    return [{"title": label} for label in value] if name == "labels" else value


# --- taking what is due ----------------------------------------------------------------------------------------------

#: Receivers take turns, so that a long queue of one delays no other; a receiver gets `room` connections at a time, and
#: one while it fails.
TAKE_DUE = Statement("""
    WITH RECURSIVE waiting (check_id) AS (
        SELECT min(queued.check_id) FROM status_check_deliveries queued WHERE queued.next_attempt_at IS NOT NULL
        UNION ALL
        SELECT (
            SELECT min(queued.check_id) FROM status_check_deliveries queued
            WHERE queued.next_attempt_at IS NOT NULL AND queued.check_id > waiting.check_id
        ) FROM waiting WHERE waiting.check_id IS NOT NULL
    ),
    receivers AS (
        SELECT checks.id, CASE WHEN checks.failing_since IS NULL THEN %(room)s::integer ELSE 1 END
            - coalesce(busy.flying, 0) AS room
        FROM waiting JOIN external_status_checks checks ON checks.id = waiting.check_id
        LEFT JOIN unnest(%(busy_checks)s::bigint[], %(busy_counts)s::integer[]) AS busy (check_id, flying)
            ON busy.check_id = checks.id
    ),
    due AS (
        SELECT taken.id FROM receivers CROSS JOIN LATERAL (
            SELECT locked.*, row_number() OVER (ORDER BY locked.next_attempt_at, locked.id) AS turn
            FROM (
                SELECT queued.id, queued.next_attempt_at FROM status_check_deliveries queued
                WHERE queued.check_id = receivers.id AND queued.next_attempt_at <= %(now)s
                ORDER BY queued.next_attempt_at, queued.id
                LIMIT greatest(receivers.room, 0)
                FOR UPDATE SKIP LOCKED
            ) locked
        ) taken
        ORDER BY taken.turn, taken.next_attempt_at LIMIT %(total_room)s
    )
    UPDATE status_check_deliveries deliveries SET next_attempt_at = %(due_again_at)s
    FROM due, external_status_checks checks
    WHERE deliveries.id = due.id AND checks.id = deliveries.check_id
    RETURNING deliveries.id, deliveries.webhook_id, deliveries.check_id, deliveries.body, deliveries.attempts,
        deliveries.tries, checks.external_url, checks.shared_secret
""")


async def take_due(
    transaction: Transaction,
    now: datetime.datetime,
    due_again_at: datetime.datetime,
    *,
    busy: Mapping[int, int],
    room: int,
    total_room: int,
) -> list[Row]:
    """Up to `total_room` deliveries that are due, up to `room` of them for one check, counting those of `busy`.

    They are due again at `due_again_at`, unless their outcome is recorded before.
    """
    return await transaction.rows(
        TAKE_DUE,
        now=now,
        due_again_at=due_again_at,
        busy_checks=list(busy),
        busy_counts=list(busy.values()),
        room=room,
        total_room=total_room,
    )


GIVE_BACK = """
    UPDATE status_check_deliveries SET next_attempt_at = %(now)s
    WHERE id = ANY (%(ids)s::bigint[]) AND status = 'queued'
"""


async def give_back(transaction: Transaction, ids: list[int], now: datetime.datetime) -> None:
    """Makes deliveries due that were taken and not attempted to the end."""
    await transaction.row(GIVE_BACK, ids=ids, now=now)


# --- recording -------------------------------------------------------------------------------------------------------

RECORD = Statement("""
    WITH outcomes AS (
        SELECT * FROM unnest(%(ids)s::bigint[], %(succeeded)s::boolean[], %(next_attempt_at)s::timestamptz[],
            %(request_headers)s::text[], %(response_status)s::integer[], %(response_headers)s::text[],
            %(response_body)s::text[], %(error)s::text[], %(duration)s::double precision[],
            %(began_at)s::timestamptz[])
        AS outcomes (id, succeeded, next_attempt_at, request_headers, response_status, response_headers,
            response_body, error, duration, began_at)
    ),
    recorded AS (
        UPDATE status_check_deliveries deliveries SET
            attempts = attempts + 1,
            tries = tries + 1,
            status = CASE WHEN outcomes.succeeded THEN 'delivered'
                WHEN outcomes.next_attempt_at IS NULL THEN 'failed' ELSE status END,
            -- While this attempt was under way its check may have been paused, and the delivery given up.
            next_attempt_at =
                CASE WHEN status = 'queued' AND NOT outcomes.succeeded THEN outcomes.next_attempt_at END,
            delivered_at = CASE WHEN outcomes.succeeded THEN %(now)s::timestamptz ELSE delivered_at END
        FROM outcomes WHERE deliveries.id = outcomes.id
        RETURNING deliveries.id, deliveries.check_id, deliveries.attempts, outcomes.succeeded
    ),
    attempts AS (
        INSERT INTO status_check_delivery_attempts (delivery_id, number, request_headers, response_status,
            response_headers, response_body, error, duration, created_at)
        SELECT recorded.id, recorded.attempts, outcomes.request_headers::json, outcomes.response_status,
            outcomes.response_headers::json, outcomes.response_body, outcomes.error, outcomes.duration,
            outcomes.began_at
        FROM recorded JOIN outcomes ON outcomes.id = recorded.id
    ),
    health AS (
        UPDATE external_status_checks checks SET
            failing_since = CASE WHEN NOT told.succeeded THEN coalesce(failing_since, %(now)s) END
        FROM (SELECT check_id, bool_or(succeeded) AS succeeded FROM recorded GROUP BY check_id) told
        WHERE checks.id = told.check_id AND (checks.failing_since IS NULL) <> told.succeeded
    )
    SELECT recorded.id, checks.id AS check_id, checks.failing_since, checks.paused_at -- as they were before
    FROM recorded JOIN external_status_checks checks ON checks.id = recorded.check_id
    ORDER BY recorded.id
""")


@attrs.frozen
class Landed:
    """An attempt that has ended, and when the next one is due (None: it has succeeded, or was the last)."""

    delivery_id: int
    outcome: Outcome
    next_attempt_at: datetime.datetime | None


async def record(transaction: Transaction, landed: Sequence[Landed], now: datetime.datetime) -> list[Row]:
    """Keeps attempts, of different deliveries, and what they mean for these and their checks.

    Gives, for each delivery that still exists: id, and check_id, failing_since and paused_at of its check as they
    were before.
    """
    outcomes = [each.outcome for each in landed]
    return await transaction.rows(
        RECORD,
        now=now,
        ids=[each.delivery_id for each in landed],
        succeeded=[outcome.succeeded for outcome in outcomes],
        next_attempt_at=[each.next_attempt_at for each in landed],
        request_headers=[_json(outcome.request_headers) for outcome in outcomes],
        response_status=[outcome.status for outcome in outcomes],
        response_headers=[None if o.status is None else _json(o.headers) for o in outcomes],
        response_body=[outcome.body for outcome in outcomes],
        error=[outcome.error for outcome in outcomes],
        duration=[round(outcome.duration, 6) for outcome in outcomes],
        began_at=[outcome.began_at for outcome in outcomes],
    )


def _json(headers: Mapping[str, str]) -> str:
    return orjson.dumps(dict(headers)).decode()


GIVE_UP = """
    UPDATE status_check_deliveries SET status = 'failed', next_attempt_at = NULL
    WHERE check_id = %(check_id)s AND next_attempt_at IS NOT NULL
"""


async def give_up(transaction: Transaction, check_id: int) -> None:
    """Nothing that is queued for the check will be sent."""
    await transaction.row(GIVE_UP, check_id=check_id)


# --- showing ---------------------------------------------------------------------------------------------------------

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


async def show(database: Executor, check_id: int, delivery_id: int) -> str | None:
    return await database.entity_if_there(SHOW, id=delivery_id, check_id=check_id)


REDELIVER = """
    UPDATE status_check_deliveries SET status = 'queued', tries = 0, next_attempt_at = %(now)s, delivered_at = NULL
    WHERE id = %(id)s AND check_id = %(check_id)s
    RETURNING id
"""


async def redeliver(
    transaction: Transaction, check_id: int, delivery_id: int, now: datetime.datetime
) -> bool:
    """Queues it once more, as the same message; whether there is such a delivery."""
    return await transaction.row(REDELIVER, id=delivery_id, check_id=check_id, now=now) is not None


FORGET = """
    DELETE FROM status_check_deliveries WHERE created_at < %(before)s AND status <> 'queued'
"""


async def forget(transaction: Transaction, before: datetime.datetime) -> None:
    await transaction.row(FORGET, before=before)
