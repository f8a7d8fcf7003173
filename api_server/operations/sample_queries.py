"""Statements about figures over time."""

import datetime
from collections.abc import Mapping, Sequence

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.statements import Query

ADD = """
    INSERT INTO operations_samples AS known (name, at, value)
    SELECT added.name, date_trunc('minute', %(now)s::timestamptz), added.value
    FROM unnest(%(names)s::text[], %(values)s::double precision[]) AS added (name, value)
    ON CONFLICT (name, at) DO UPDATE SET value = CASE WHEN %(sum)s THEN known.value ELSE 0 END + excluded.value
"""


async def add(transaction: Transaction, values: Mapping[str, float], *, sums: bool) -> None:
    """Keeps values of the present minute. Those that are there already are added to where processes count parts of
    one whole, and replaced where not."""
    await transaction.run(ADD, names=list(values), values=list(values.values()), sum=sums)


@attrs.frozen
class Sample:
    """A figure of one minute, by its beginning."""

    name: str
    at: datetime.datetime
    value: float


HISTORY = Query(
    """
    SELECT name, at, value FROM operations_samples
    WHERE name = ANY (%(names)s::text[]) AND at >= %(since)s::timestamptz ORDER BY name, at
    """,
    Sample,
)


async def history(database: Executor, names: Sequence[str], since: datetime.datetime) -> list[Sample]:
    """What is kept of figures, the oldest first."""
    return await database.rows(HISTORY, names=list(names), since=since)


FORGET = "DELETE FROM operations_samples WHERE at < %(before)s::timestamptz"


async def forget(transaction: Transaction, before: datetime.datetime) -> None:
    await transaction.run(FORGET, before=before)
