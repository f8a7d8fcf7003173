"""Statements that read events as lines, and take partitions of them away."""

import datetime
from collections.abc import AsyncIterator

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.statements import Query

_BATCH = 5_000

COUNT = """
    SELECT count(*) FROM audit_events WHERE created_at >= %(since)s AND created_at < %(until)s
"""


async def count(database: Executor, since: datetime.datetime, until: datetime.datetime) -> int:
    return int(await database.value(COUNT, since=since, until=until))


@attrs.frozen
class Event:
    """An event as the chain digests it; `digest` is what the chain says of it (None: nothing)."""

    id: int
    line: str
    digest: bytes | None


OPEN_EVENTS = """
    DECLARE exported NO SCROLL CURSOR FOR
    SELECT audit_events.id, audit_event_line(audit_events) AS line, audit_chain.digest
    FROM audit_events LEFT JOIN audit_chain
        ON audit_chain.event_id = audit_events.id AND audit_chain.created_at = audit_events.created_at
    WHERE audit_events.created_at >= %(since)s AND audit_events.created_at < %(until)s
    ORDER BY audit_events.created_at, audit_events.id
"""
FETCH = Query(f"FETCH {_BATCH} FROM exported", Event)
CLOSE = "CLOSE exported"


async def batches(
    transaction: Transaction, since: datetime.datetime, until: datetime.datetime
) -> AsyncIterator[list[Event]]:
    """The events of [since, until), oldest first, some thousands at a time."""
    await transaction.run(OPEN_EVENTS, since=since, until=until)
    while events := await transaction.rows(FETCH):
        yield events
    await transaction.run(CLOSE)


@attrs.frozen
class Partition:
    """A table with the events of [since, until)."""

    name: str
    since: datetime.datetime
    until: datetime.datetime


OLD_PARTITIONS = Query(
    """
    SELECT name, since, until FROM (
        SELECT pg_class.relname AS name,
            substring(bound FROM $$FROM \\('([^']+)'\\)$$)::timestamptz AS since,
            substring(bound FROM $$TO \\('([^']+)'\\)$$)::timestamptz AS until
        FROM pg_inherits JOIN pg_class ON pg_class.oid = pg_inherits.inhrelid
        CROSS JOIN pg_get_expr(pg_class.relpartbound, pg_class.oid) bound
        WHERE pg_inherits.inhparent = 'audit_events'::regclass
    ) partitions
    WHERE since IS NOT NULL AND until <= %(before)s ORDER BY until
    """,
    Partition,
)


async def old_partitions(database: Executor, before: datetime.datetime) -> list[Partition]:
    """Those of months that are over before that moment, oldest first."""
    return await database.rows(OLD_PARTITIONS, before=before)


# The names come from the database's catalogue and have been made by make_audit_partitions.


async def lock_partition(transaction: Transaction, partition: Partition) -> None:
    await transaction.run(f"LOCK TABLE {partition.name} IN ACCESS EXCLUSIVE MODE")


async def drop_partition(transaction: Transaction, partition: Partition) -> None:
    await transaction.run(f"ALTER TABLE audit_events DETACH PARTITION {partition.name}")
    await transaction.run(f"DROP TABLE {partition.name}")
