"""SQL with what it yields: `Query` and, for hot paths, `Statement`, which is prepared."""

import functools
import hashlib
import re
from collections import namedtuple
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, cast, overload

RowT = TypeVar("RowT")

#: What may change the database. Locks (FOR UPDATE) and upserts (DO UPDATE, after an INSERT) are not what is looked for.
_WRITE = re.compile(r"\b(?:INSERT INTO|DELETE FROM|(?<!FOR )(?<!KEY )(?<!DO )UPDATE)\b")
_PARAMETER = re.compile(r"%\((\w+)\)s")


class Query(str, Generic[RowT]):
    """SQL whose rows are instances of the attrs class `row`: its fields are the columns, by name. JSON is text.

    Parameters are `%(name)s`; `%(now)s` is the application's present moment and need not be given.
    Without a class, `Executor.value` and `Executor.run` take it, which plain SQL texts are good enough for.
    """

    row: type[RowT] | None

    @overload
    def __new__(cls, sql: str) -> "Query[Any]": ...
    @overload
    def __new__(cls, sql: str, row: type[RowT]) -> "Query[RowT]": ...
    def __new__(cls, sql: str, row: type[Any] | None = None) -> "Query[Any]":
        query = super().__new__(cls, sql)
        query.row = row
        return query


class Statement(Query[RowT]):
    """SQL that is prepared once per connection, for statements on hot paths.

    The server infers the parameters' types, so write a cast where it cannot (`%(query)s::text`). `planned_once` is for
    those whose plan is right for all values: the server would else go on planning anew where it guesses that a plan
    for the values at hand is cheaper, which over many tables or partitions costs more than running.
    """

    name: str
    prepare: str
    execute: str

    @overload
    def __new__(cls, sql: str, *, planned_once: bool = False) -> "Statement[Any]": ...
    @overload
    def __new__(cls, sql: str, row: type[RowT], *, planned_once: bool = False) -> "Statement[RowT]": ...
    def __new__(
        cls, sql: str, row: type[Any] | None = None, *, planned_once: bool = False
    ) -> "Statement[Any]":
        statement = str.__new__(cls, sql)
        statement.row = row
        positional, names = numbered(sql)
        arguments = ", ".join(f"%({name})s" for name in names)
        statement.name = f"s_{hashlib.sha256(sql.encode()).hexdigest()[:24]}"
        statement.prepare = f"PREPARE {statement.name} AS {positional}"
        plan = "SET LOCAL plan_cache_mode = force_generic_plan; " if planned_once else ""
        statement.execute = f"{plan}EXECUTE {statement.name}" + (f"({arguments})" if names else "")
        return statement


def instances(statement: Query[RowT], columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> list[RowT]:
    """The rows as instances of the statement's class."""
    row: Any = getattr(statement, "row", None)
    if row is None:  # tests ask in plain SQL too, and read named tuples
        row = cast("Any", namedtuple)("Row", columns, rename=True)
        return [row(*values) for values in rows]
    return [row(**dict(zip(columns, values, strict=True))) for values in rows]


def numbered(sql: str) -> tuple[str, list[str]]:
    """The SQL as PostgreSQL itself takes it, with `$1` for the first of the names that are given beside it."""
    names: list[str] = []

    def position(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return _PARAMETER.sub(position, sql).replace("%%", "%"), names


@functools.cache
def _kind(statement: str) -> str:
    if _WRITE.search(statement) is None:
        return "reads"
    return "writes" if statement.lstrip().startswith(("INSERT", "UPDATE", "DELETE")) else "writes below"


def has_written(statement: str, rows: int) -> bool:
    """Whether a statement that has touched or yielded so many rows may have changed something.

    One that writes in a CTE below a SELECT always may: its rows are not those that were written.
    """
    kind = _kind(statement)
    return kind == "writes below" or (kind == "writes" and rows != 0)
