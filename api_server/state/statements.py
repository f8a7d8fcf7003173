"""SQL with the class of its rows: `Query` and, for hot paths, the prepared `Statement`."""

import functools
import hashlib
import re
from collections import namedtuple
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, cast, overload

RowT = TypeVar("RowT")

#: Statements that may change the database. Locks (FOR UPDATE) and upserts (DO UPDATE, after an INSERT) are
#: not matched.
_WRITE = re.compile(r"\b(?:INSERT INTO|DELETE FROM|(?<!FOR )(?<!KEY )(?<!DO )UPDATE)\b")
_PARAMETER = re.compile(r"%\((\w+)\)s")


class Query(str, Generic[RowT]):
    """SQL whose rows are instances of the attrs class `row`: its fields are the columns, by name. JSON is
    text.

    Parameters are `%(name)s`; `%(now)s` is the application's present moment and need not be given.
    `Executor.value` and `Executor.run` need no row class and also accept plain SQL strings.
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

    The server infers the parameters' types, so write a cast where it cannot (`%(query)s::text`). Use
    `planned_once` if one plan is right for all values. Otherwise the server plans again whenever it expects a
    cheaper plan for the given values, which over many tables or partitions costs more than running the
    statement.
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
    """Return the rows as instances of the statement's class."""
    row: Any = getattr(statement, "row", None)
    if row is None:  # tests also run plain SQL and read named tuples
        row = cast("Any", namedtuple)("Row", columns, rename=True)
        return [row(*values) for values in rows]
    return [row(**dict(zip(columns, values, strict=True))) for values in rows]


def numbered(sql: str) -> tuple[str, list[str]]:
    """Return the SQL in PostgreSQL's own notation (`$1`, `$2` ...), and the names of the parameters in that
    order."""
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
    """Return whether a statement that has touched or yielded `rows` rows may have changed something.

    A statement that writes in a CTE below a SELECT always may: its rows are not those that were written.
    """
    kind = _kind(statement)
    return kind == "writes below" or (kind == "writes" and rows != 0)
