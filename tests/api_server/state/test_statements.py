"""Declared query functions: their results and parameters, refusals at import, and rules for all statements."""

import asyncio
import datetime
import importlib
import inspect
import pkgutil
import re
import types
import typing
from collections.abc import Iterator, Sequence

import asyncpg
import attrs
import pytest

import api_server
from api_server.state.database import Database, Executor, connect
from api_server.state.declarations import statement
from api_server.state.errors import NotFound
from api_server.state.listing import ListQuery
from api_server.state.statements import Query, Statement, has_written, numbered
from tests.support.deviations import Deviations
from tests.support.forge import Forge


def _modules() -> Iterator[types.ModuleType]:
    for found in pkgutil.walk_packages(api_server.__path__, "api_server."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def _statements() -> dict[str, Query[typing.Any]]:
    """Return all statements in modules, by module and name; a list has one for each of its orders."""
    found: dict[str, Query[typing.Any]] = {}
    for module in _modules():
        for name, declared in vars(module).items():
            value = getattr(declared, "statement", declared) if inspect.isfunction(declared) else declared
            if isinstance(value, Query):
                found.setdefault(value, f"{module.__name__}.{name}")
            elif isinstance(value, ListQuery):
                for statement in value._statements.values():
                    found.setdefault(statement, f"{module.__name__}.{name}")
    # The result of a cursor is only known once the cursor exists.
    return {name: sql for sql, name in found.items() if sql.row is not None and not sql.startswith("FETCH")}


STATEMENTS = _statements()

#: asyncpg's names of column types, and the types that Python reads here.
_READ_AS: dict[str, typing.Any] = {
    "int8": int, "int4": int, "int2": int, "bool": bool, "text": str, "varchar": str, "json": str, "jsonb": str,
    "float8": float, "float4": float, "bytea": bytes, "date": datetime.date, "timestamptz": datetime.datetime,
    "name": str, "text[]": list[str], "int8[]": list[int], "int4[]": list[int], "int2[]": list[int],
    "bytea[]": list[bytes], "json[]": list[str], "varchar[]": list[str], "uuid": str,
}  # fmt: skip


@pytest.fixture(scope="module")
async def described(forge: Forge) -> typing.AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(forge.settings.database_url)
    yield connection
    await connection.close()


def test_there_are_statements() -> None:
    assert len(STATEMENTS) > 150


async def test_a_row_class_has_the_columns_of_its_statement(described) -> None:
    deviations = Deviations()
    for name, declared in STATEMENTS.items():
        with deviations.of(name):
            columns = (await _prepared(described, declared)).get_attributes()
            fields = {field.name: field.type for field in attrs.fields(declared.row)}
            assert list(fields) == [column.name for column in columns]
            for column in columns:
                kind = "[]" if column.type.kind == "array" else ""
                expected = _READ_AS[f"{column.type.name.removesuffix('[]')}{kind}"]
                assert expected in _accepted(fields[column.name]), (
                    column.name,
                    fields[column.name],
                    expected,
                )
    assert not deviations, deviations.report


async def test_a_scalar_has_the_type_that_its_function_returns(described) -> None:
    """A list or set has the type of the first column of its rows."""
    deviations = Deviations()
    for name, function, hint in _declared_scalars():
        with deviations.of(name):
            (column, *_) = (await _prepared(described, function.statement)).get_attributes()
            kind = "[]" if column.type.kind == "array" else ""
            assert _READ_AS[f"{column.type.name.removesuffix('[]')}{kind}"] in _accepted(hint)
    assert not deviations, deviations.report


def _declared_scalars() -> Iterator[tuple[str, typing.Any, typing.Any]]:
    """Return the functions without a row class, with the types that they return; `bool` may also mean that a row was
    changed."""
    for module in _modules():
        for name, function in vars(module).items():
            if inspect.isfunction(function) and hasattr(function, "statement"):
                hint = typing.get_type_hints(function)["return"]
                if function.statement.row is None and hint not in (bool, types.NoneType):
                    item = typing.get_args(hint)[0] if typing.get_origin(hint) in (list, set) else hint
                    yield f"{module.__name__}.{name}", function, item


def _accepted(annotation: typing.Any) -> set[typing.Any]:
    """Return the types that a field with that annotation accepts; a Literal or IntEnum accepts those of its values."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return {one for arm in typing.get_args(annotation) for one in _accepted(arm)}
    if typing.get_origin(annotation) is typing.Literal:
        return {type(value) for value in typing.get_args(annotation)}
    if isinstance(annotation, type) and issubclass(annotation, int) and annotation is not bool:
        return {int}
    return {annotation}


async def _prepared(connection: asyncpg.Connection, statement: str) -> typing.Any:
    sql, names = numbered(statement)
    try:
        return await connection.prepare(sql)
    except asyncpg.PostgresError:
        if isinstance(statement, Statement):
            raise
    # Statements that are not prepared send values as typed literals; NULL stands for all of them.
    literals = {"now": "now()"}
    for number in range(len(names), 0, -1):
        sql = sql.replace(f"${number}", literals.get(names[number - 1], "NULL"))
    return await connection.prepare(sql)


_INSERT = re.compile(r"INSERT INTO (\w+)(?: AS \w+)?\s*\(([^)]*)\)")
_OF_THE_DATABASE = re.compile(
    r"\b(?:now\(\)|current_date|current_timestamp|clock_timestamp|transaction_timestamp|localtimestamp)",
    re.IGNORECASE,
)


def _texts() -> dict[str, str]:
    return {
        f"{module.__name__}.{name}": value
        for module in _modules()
        for name, declared in vars(module).items()
        if isinstance(value := getattr(declared, "statement", declared), str)
        and re.search(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM)\b", value)
    }


TEXTS = _texts()


def test_no_statement_asks_the_database_what_time_it_is() -> None:
    asking = {name for name, text in TEXTS.items() if _OF_THE_DATABASE.search(text)}
    # One compares the clocks, one replaces the database's for a server for tests.
    assert asking == {"api_server.state.migrate.CLOCK", "api_server.testing.queries.MAKE_CLOCK"}


async def test_no_insert_leaves_a_moment_to_the_database(described) -> None:
    timed = await described.fetch("""
        SELECT table_name, array_agg(column_name::text) AS columns FROM information_schema.columns
        WHERE table_schema = 'public' AND column_default ~* 'now\\(|clock_timestamp|current_'
        GROUP BY table_name
    """)
    moments = {row["table_name"]: set(row["columns"]) for row in timed}
    forgotten = {
        name: missing
        for name, text in TEXTS.items()
        for table, columns in _INSERT.findall(text)
        if (missing := moments.get(table, set()) - set(re.findall(r"\w+", columns)))
    }
    assert forgotten == {}


@pytest.mark.parametrize(
    ("statement", "rows", "written"),
    [
        ("SELECT 1", 1, False),
        ("SELECT id FROM jobs FOR UPDATE SKIP LOCKED", 3, False),
        ("SELECT id FROM jobs FOR NO KEY UPDATE", 3, False),
        ("UPDATE jobs SET name = 'a'", 0, False),
        ("UPDATE jobs SET name = 'a'", 1, True),
        ("INSERT INTO jobs (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET id = 1", 1, True),
        ("INSERT INTO jobs (id) VALUES (1) ON CONFLICT DO NOTHING", 0, False),
        ("\n    DELETE FROM jobs", 2, True),
        ("WITH gone AS (DELETE FROM jobs RETURNING id) SELECT id FROM gone WHERE false", 0, True),
    ],
)
def test_what_has_written(statement: str, rows: int, written: bool) -> None:
    assert has_written(statement, rows) is written


async def test_a_transaction_that_wrote_nothing_voids_nothing(forge: Forge) -> None:
    async with connect(forge.settings.database_url, base_url=forge.base, size=1) as database:
        async with database.transaction() as transaction:
            await transaction.run("UPDATE users SET name = name WHERE id = -1")
            await transaction.row("SELECT id FROM users LIMIT 1 FOR UPDATE")
        assert database.generation == 0
        async with database.transaction() as transaction:
            await transaction.run("UPDATE users SET name = name WHERE username = 'root'")
        assert database.generation == 1


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
