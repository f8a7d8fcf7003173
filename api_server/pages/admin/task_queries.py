"""Statements about tasks that come again and again."""

import datetime

import attrs

from api_server.state.database import Executor
from api_server.state.statements import Query


@attrs.frozen
class Deferred:
    """When a periodic task was queued last, in seconds since 1970."""

    name: str
    timestamp: int

    @property
    def moment(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.timestamp, datetime.UTC)


LAST_DEFERRED = Query(
    """
    SELECT known.name, last.defer_timestamp AS timestamp FROM unnest(%(names)s::text[]) AS known (name)
    CROSS JOIN LATERAL (
        SELECT defers.defer_timestamp FROM procrastinate_periodic_defers defers
        WHERE defers.task_name = known.name ORDER BY defers.defer_timestamp DESC LIMIT 1) last
    """,
    Deferred,
)


async def last_deferred(database: Executor, names: list[str]) -> dict[str, datetime.datetime]:
    """When each of the tasks was queued last by its clock; those that never were are missing."""
    return {one.name: one.moment for one in await database.rows(LAST_DEFERRED, names=names)}
