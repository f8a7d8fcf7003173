# mypy: disable-error-code="empty-body"
"""Statements about deliveries: queueing, listing and redelivery, and the statements of the dispatcher."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import orjson

from api_server.merge_requests.changes import MergeRequestEvent
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.errors import NotFound
from api_server.state.listing import ListPage, ListQuery, Page, entity_statement, read_sql
from api_server.state.statements import Statement
from api_server.status_checks.attempts import Outcome

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
    """Queue a merge request's event for every check that applies to it and is not paused."""
    await transaction.run(
        QUEUE_EVENT,
        merge_request_id=event.merge_request_id,
        action=event.action,
        user_id=event.user_id,
        old_head=event.old_head,
        changes=orjson.dumps(_changes(event.changes)).decode(),
    )


async def queue_state(transaction: Transaction, check_id: int, merge_request_id: int, user_id: int) -> None:
    """Queue the present state of a merge request for one check, even if it is paused, because a user asks for it."""
    await transaction.run(
        QUEUE_STATE, check_id=check_id, merge_request_id=merge_request_id, user_id=user_id, **_NO_EVENT
    )


async def queue_all_open(transaction: Transaction, check_id: int, user_id: int | None) -> None:
    """Queue the present state of all open merge requests that the check applies to."""
    await transaction.run(QUEUE_ALL_OPEN, check_id=check_id, user_id=user_id, **_NO_EVENT)


_NO_EVENT = {"action": None, "old_head": None, "changes": "{}"}


def _changes(changes: Mapping[str, tuple[Any, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: {"previous": _delivered(name, previous), "current": _delivered(name, current)}
        for name, (previous, current) in changes.items()
    }


def _delivered(name: str, value: Any) -> Any:
    return [{"title": label} for label in value] if name == "labels" else value


LISTING = ListQuery(
    _ENTITIES["delivery"],
    """
    SELECT deliveries.id FROM status_check_deliveries deliveries
    WHERE deliveries.check_id = %(check_id)s
        AND (%(status)s::text IS NULL OR deliveries.status = %(status)s)
    """,
)


async def list_deliveries(database: Executor, page: Page, **filters: Any) -> ListPage:
    return await LISTING.read(database, page, **filters)


@statement(
    entity_statement(
        _ENTITIES["delivery_with_attempts"],
        """
    SELECT deliveries.id FROM status_check_deliveries deliveries
    WHERE deliveries.id = %(delivery_id)s AND deliveries.check_id = %(check_id)s
    """,
    )
)
async def show(database: Executor, check_id: int, delivery_id: int) -> str:
    """Return the delivery's entity with the payload and every attempt. Raise NotFound."""


REDELIVER = """
    UPDATE status_check_deliveries SET status = 'queued', tries = 0, next_attempt_at = %(now)s, delivered_at = NULL
    WHERE id = %(id)s AND check_id = %(check_id)s
"""


async def redeliver(transaction: Transaction, check_id: int, delivery_id: int) -> None:
    """Queue the delivery once more, as the same message. Raise NotFound."""
    if not await transaction.run(REDELIVER, id=delivery_id, check_id=check_id):
        raise NotFound


@statement("""
    DELETE FROM status_check_deliveries WHERE created_at < %(before)s AND status <> 'queued'
""")
async def forget(transaction: Transaction, before: datetime.datetime) -> None: ...


@attrs.frozen(kw_only=True)
class DueDelivery:
    """A delivery that this process has taken. `attempts` counts all, `tries` those since it was last queued."""

    id: int
    webhook_id: str
    check_id: int
    body: str
    attempts: int
    tries: int
    external_url: str
    shared_secret: bytes | None = attrs.field(repr=False)


#: Receivers take turns, so that a long queue of one does not delay the others. A receiver gets at most `room`
#: connections at a time, and only one while it fails. The UPDATE is the outer statement, so that its row count shows
#: whether anything was written: a look at an empty queue counts as a read.
TAKE_DUE = Statement(
    """
    UPDATE status_check_deliveries deliveries SET next_attempt_at = %(due_again_at)s
    FROM external_status_checks checks, (
        WITH RECURSIVE waiting (check_id) AS (
            (SELECT queued.check_id FROM status_check_deliveries queued WHERE queued.next_attempt_at IS NOT NULL
            ORDER BY queued.check_id, queued.next_attempt_at LIMIT 1)
            UNION ALL
            SELECT (
                SELECT queued.check_id FROM status_check_deliveries queued
                WHERE queued.next_attempt_at IS NOT NULL AND queued.check_id > waiting.check_id
                ORDER BY queued.check_id, queued.next_attempt_at LIMIT 1
            ) FROM waiting WHERE waiting.check_id IS NOT NULL
        ),
        receivers AS (
            SELECT checks.id, CASE WHEN checks.failing_since IS NULL THEN %(per_check)s::integer ELSE 1 END
                - coalesce(busy.in_flight, 0) AS room
            FROM waiting JOIN external_status_checks checks ON checks.id = waiting.check_id
            LEFT JOIN unnest(%(busy_checks)s::bigint[], %(busy_counts)s::integer[]) AS busy (check_id, in_flight)
                ON busy.check_id = checks.id
        ),
        due AS MATERIALIZED (
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
            ORDER BY taken.turn, taken.next_attempt_at LIMIT %(limit)s
        )
        SELECT due.id FROM due
    ) due
    WHERE deliveries.id = due.id AND checks.id = deliveries.check_id
    RETURNING deliveries.id, deliveries.webhook_id::text AS webhook_id, deliveries.check_id, deliveries.body,
        deliveries.attempts, deliveries.tries, checks.external_url, checks.shared_secret
    """,
    DueDelivery,
)


async def take_due(
    transaction: Transaction,
    *,
    lease: datetime.timedelta,
    busy: Mapping[int, int],
    per_check: int,
    limit: int,
) -> list[DueDelivery]:
    """Take and return up to `limit` due deliveries, at most `per_check` for one check, including those in `busy`.

    They become due again after `lease`, unless their outcome is recorded before. `busy` is the number of attempts
    in progress, by check.
    """
    return await transaction.rows(
        TAKE_DUE,
        due_again_at=transaction.now + lease,
        busy_checks=list(busy),
        busy_counts=list(busy.values()),
        per_check=per_check,
        limit=limit,
    )


@statement("""
    UPDATE status_check_deliveries SET next_attempt_at = %(now)s
    WHERE id = ANY (%(ids)s::bigint[]) AND status = 'queued'
""")
async def release(transaction: Transaction, ids: list[int]) -> None:
    """Make deliveries due again whose attempts were interrupted."""


@attrs.frozen
class RecordedAttempt:
    """A delivery whose attempt has been recorded, and the former state of its check."""

    id: int
    check_id: int
    failing_since: datetime.datetime | None
    paused_at: datetime.datetime | None


#: Whether the attempt decides what becomes of its delivery: not if somebody has redelivered that meanwhile, or if the
#: check has got another URL.
_DECIDES = "deliveries.tries = outcomes.tries AND held.external_url = outcomes.url"

#: The projects and the checks are held first, as a transaction does that removes one of them with its deliveries.
RECORD = Statement(
    f"""
    WITH outcomes AS (
        SELECT * FROM unnest(%(ids)s::bigint[], %(tries)s::integer[], %(urls)s::text[], %(succeeded)s::boolean[],
            %(next_attempt_at)s::timestamptz[], %(request_headers)s::text[], %(response_status)s::integer[],
            %(response_headers)s::text[], %(response_body)s::text[], %(error)s::text[],
            %(duration)s::double precision[], %(began_at)s::timestamptz[], %(problem)s::text[])
        AS outcomes (id, tries, url, succeeded, next_attempt_at, request_headers, response_status, response_headers,
            response_body, error, duration, began_at, problem)
    ),
    held AS MATERIALIZED (
        SELECT checks.id, checks.external_url
        FROM projects JOIN external_status_checks checks ON checks.project_id = projects.id
        WHERE checks.id = ANY (%(check_ids)s::bigint[]) FOR KEY SHARE OF projects, checks
    ),
    recorded AS (
        UPDATE status_check_deliveries deliveries SET
            attempts = attempts + 1,
            tries = deliveries.tries + ({_DECIDES})::integer,
            status = CASE WHEN outcomes.succeeded THEN 'delivered'
                WHEN outcomes.next_attempt_at IS NULL AND {_DECIDES} THEN 'failed' ELSE status END,
            -- the check may have been paused during this attempt, and the delivery given up
            next_attempt_at = CASE WHEN status = 'queued' AND NOT outcomes.succeeded THEN
                CASE WHEN {_DECIDES} THEN outcomes.next_attempt_at ELSE deliveries.next_attempt_at END END,
            delivered_at = CASE WHEN outcomes.succeeded THEN %(now)s::timestamptz ELSE delivered_at END
        FROM outcomes, held WHERE deliveries.id = outcomes.id AND held.id = deliveries.check_id
        RETURNING deliveries.id, deliveries.check_id, deliveries.attempts, outcomes.succeeded, outcomes.problem,
            held.external_url = outcomes.url AS same_url
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
            failing_since = CASE WHEN NOT told.succeeded THEN coalesce(failing_since, %(now)s) END,
            problem = CASE WHEN NOT told.succeeded THEN told.problem END
        FROM (
            SELECT check_id, bool_or(succeeded) AS succeeded, max(problem) AS problem FROM recorded
            WHERE same_url GROUP BY check_id
        ) told
        WHERE checks.id = told.check_id AND ((checks.failing_since IS NULL) <> told.succeeded
            OR NOT told.succeeded AND checks.problem IS DISTINCT FROM told.problem)
    )
    SELECT recorded.id, checks.id AS check_id, checks.failing_since, checks.paused_at -- the former values
    FROM recorded JOIN external_status_checks checks ON checks.id = recorded.check_id
    WHERE recorded.same_url
    ORDER BY recorded.id
    """,
    RecordedAttempt,
)


@attrs.frozen
class DeliveryResult:
    """The outcome of an attempt, and the time of the next one (None after success and after the last attempt)."""

    delivery: DueDelivery
    outcome: Outcome
    next_attempt_at: datetime.datetime | None


async def record(transaction: Transaction, results: Sequence[DeliveryResult]) -> list[RecordedAttempt]:
    """Record attempts of different deliveries, and update these deliveries and their checks.

    Return the deliveries that still exist and whose checks still have the URL that the attempt was made to.
    """
    outcomes = [result.outcome for result in results]
    return await transaction.rows(
        RECORD,
        ids=[result.delivery.id for result in results],
        check_ids=list({result.delivery.check_id for result in results}),
        tries=[result.delivery.tries for result in results],
        urls=[result.delivery.external_url for result in results],
        succeeded=[outcome.succeeded for outcome in outcomes],
        next_attempt_at=[result.next_attempt_at for result in results],
        request_headers=[_json(outcome.request_headers) for outcome in outcomes],
        response_status=[outcome.status for outcome in outcomes],
        response_headers=[None if o.status is None else _json(o.headers) for o in outcomes],
        response_body=[outcome.body for outcome in outcomes],
        error=[outcome.error for outcome in outcomes],
        duration=[round(outcome.duration, 6) for outcome in outcomes],
        began_at=[outcome.began_at for outcome in outcomes],
        problem=[outcome.problem for outcome in outcomes],
    )


def _json(headers: Mapping[str, str]) -> str:
    return orjson.dumps(dict(headers)).decode()


@statement("""
    UPDATE status_check_deliveries SET status = 'failed', next_attempt_at = NULL
    WHERE check_id = %(check_id)s AND next_attempt_at IS NOT NULL
""")
async def give_up(transaction: Transaction, check_id: int) -> None:
    """Set all queued deliveries of the check to `failed`."""
