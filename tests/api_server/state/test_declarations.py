"""Query functions that are declared: what they return, what they send, and what is refused at import."""

import asyncio
from collections.abc import Sequence

import attrs
import pytest

from api_server.state.database import Database, Executor
from api_server.state.declarations import statement
from api_server.state.errors import NotFound
from api_server.state.statements import Query, Statement
from tests.support.forge import Forge


@attrs.frozen
class Pair:
    key: int
    word: str


PAIRS = "SELECT * FROM (VALUES (1, 'one'), (2, 'two')) AS pairs (key, word)"


@statement(f"{PAIRS} WHERE key = %(key)s")
async def pair(database: Executor, key: int) -> Pair: ...


@statement(f"{PAIRS} WHERE key = %(key)s")
async def pair_if_there(database: Executor, key: int) -> Pair | None: ...


@statement(f"{PAIRS} WHERE key = ANY (%(keys)s) ORDER BY key", prepared=False)
async def pairs(database: Executor, keys: Sequence[int]) -> list[Pair]: ...


@statement(f"SELECT word FROM ({PAIRS}) AS all_pairs WHERE key <= %(most)s ORDER BY key")
async def words(database: Executor, most: int = 1) -> list[str]: ...


@statement("SELECT %(key)s::int + %(add)s::int", prepared=True)
async def total(database: Executor, key: int, *, add: int) -> int: ...


@statement("SELECT 1 WHERE %(there)s")
async def number_if_there(database: Executor, there: bool) -> int | None: ...


@statement("SELECT false")
async def is_so(database: Executor) -> bool: ...


@statement("DELETE FROM users WHERE id = %(user_id)s")
async def deletes(database: Executor, user_id: int) -> bool: ...


@statement("SELECT %(key)s::text || %(word)s || %(end)s")
async def joined(database: Executor, pair: Pair, **rest: str) -> str: ...


@pytest.fixture
def database(forge: Forge) -> Database:
    return forge.database


async def test_rows(database: Database) -> None:
    assert await pair(database, 1) == Pair(1, "one")
    with pytest.raises(NotFound):
        await pair(database, 3)
    assert await pair_if_there(database, 2) == Pair(2, "two")
    assert await pair_if_there(database, 3) is None
    assert await pairs(database, (2, 1)) == [Pair(1, "one"), Pair(2, "two")]
    assert await pairs(database, keys=[]) == []


async def test_scalars(database: Database) -> None:
    assert await words(database) == ["one"]
    assert await words(database, 2) == ["one", "two"]
    assert await total(database, 1, add=2) == 3
    assert await number_if_there(database, True) == 1
    assert await number_if_there(database, False) is None
    assert await is_so(database) is False
    async with database.transaction() as transaction:
        assert await deletes(transaction, -1) is False


async def test_arguments_that_are_objects_and_those_by_name(database: Database) -> None:
    assert await joined(database, Pair(1, "one"), end="!") == "1one!"
    with pytest.raises(TypeError):
        await total(database, 1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        await is_so(database, 1)  # type: ignore[call-arg]


def test_the_statement_is_kept() -> None:
    assert isinstance(total.statement, Statement)  # type: ignore[attr-defined]
    assert isinstance(pair.statement, Query)  # type: ignore[attr-defined]
    assert pair.statement.row is Pair  # type: ignore[attr-defined]
    assert not asyncio.iscoroutinefunction(pair)
    assert pair.__name__ == "pair"


def test_what_does_not_fit_is_refused() -> None:
    async def with_too_much(database: Executor, key: int) -> None: ...

    async def with_too_little(database: Executor) -> None: ...

    async def with_the_same_twice(database: Executor, pair: Pair, other: Pair) -> None: ...

    for sql, function in (
        ("SELECT 1", with_too_much),
        ("SELECT %(key)s", with_too_little),
        ("SELECT %(key)s, %(word)s", with_the_same_twice),
    ):
        with pytest.raises(TypeError, match=function.__name__):
            statement(sql)(function)
