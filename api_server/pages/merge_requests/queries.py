"""Statements of the page of a merge request: what has been sent to status checks about it."""

import datetime

import attrs

from api_server.state.database import Executor
from api_server.state.statements import Query


@attrs.frozen(kw_only=True)
class Delivery:
    """A message to a status check, with its last attempt: `response_status` of an answer, or the `error` that none
    came for."""

    id: int
    check_id: int
    check_name: str
    action: str | None
    status: str
    attempts: int
    response_status: int | None
    response_body: str | None
    error: str | None
    attempted_at: datetime.datetime | None
    created_at: datetime.datetime
    next_attempt_at: datetime.datetime | None


DELIVERIES = Query(
    """
    SELECT deliveries.id, deliveries.check_id, checks.name AS check_name, deliveries.action, deliveries.status,
        deliveries.attempts, latest.response_status, left(latest.response_body, 500) AS response_body, latest.error,
        latest.created_at AS attempted_at, deliveries.created_at, deliveries.next_attempt_at
    FROM (
        SELECT recent.* FROM status_check_deliveries recent WHERE recent.merge_request_id = %(merge_request_id)s
        ORDER BY recent.id DESC LIMIT %(most)s
    ) deliveries
    JOIN external_status_checks checks ON checks.id = deliveries.check_id
    LEFT JOIN status_check_delivery_attempts latest
        ON latest.delivery_id = deliveries.id AND latest.number = deliveries.attempts
    ORDER BY deliveries.id DESC
    """,
    Delivery,
)


async def deliveries(database: Executor, merge_request_id: int, most: int) -> list[Delivery]:
    """The newest."""
    return await database.rows(DELIVERIES, merge_request_id=merge_request_id, most=most)
