"""The rows that PostgreSQL reads for a statement, and transactions that leave no trace."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson

from api_server.state import database
from api_server.state.database import Database, Transaction


class _Undone(Exception):
    pass


@contextlib.asynccontextmanager
async def undone(database: Database) -> AsyncIterator[Transaction]:
    """Yield a transaction that is rolled back at the end of the block."""
    with contextlib.suppress(_Undone):
        async with database.transaction() as transaction:
            yield transaction
            raise _Undone


@contextlib.asynccontextmanager
async def loaded(url: str, statements: str, **parameters: Any) -> AsyncIterator[Database]:
    """Yield a database with many rows, whose tables are read sequentially only if there is no index."""
    base_url = "http://forge.example.org"
    async with database.connect(url, base_url=base_url, size=1, statement_timeout=600) as connected:
        async with connected.transaction() as transaction:
            for statement in filter(str.strip, statements.split(";\n")):
                await transaction.rows(statement, **parameters)
            await transaction.rows("SET enable_seqscan = off")
        yield connected


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a node of a plan and all nodes below it."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


async def scans(
    transaction: Transaction, table: str, statement: object, **parameters: Any
) -> list[dict[str, Any]]:
    """Run the statement. Return the nodes of its plan that read the table."""
    explained = await transaction.value(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", **parameters)
    (top,) = orjson.loads(explained)
    return [node for node in nodes(top["Plan"]) if node.get("Relation Name") == table]


def rows_read(found: list[dict[str, Any]]) -> int:
    """Return the number of rows that these nodes have read."""
    return sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in found
    )
