"""What PostgreSQL's catalogue says of types, functions and columns."""

import re
from collections import defaultdict
from typing import Any

import attrs

from api_server.state.statements import Query, numbered
from scripts.schemas import nodes
from scripts.schemas.nodes import Node

_IN = re.compile(r"CHECK \(\(\w+ = ANY \(ARRAY\[(.+)\]\)\)\)")
_ONE_EXPRESSION = re.compile(r"\s*BEGIN\s+RETURN (.+);\s*END;?\s*", re.DOTALL)
_TEXT = re.compile(r"'((?:[^']|'')*)'::text")


@attrs.frozen
class Column:
    """`values` are those that a CHECK of the column lets in, where it names them."""

    type: int
    not_null: bool
    values: tuple[str, ...]


@attrs.frozen
class Type:
    name: str
    #: Of what arrays are arrays.
    element: int
    #: The table whose rows are of this type.
    table: int


@attrs.frozen
class Catalog:
    """By the numbers that PostgreSQL has given them."""

    types: dict[int, Type]
    functions: dict[int, str]
    #: What our own functions return, where they are one expression or one query.
    bodies: dict[int, Node]
    columns: dict[int, list[Column]]
    cursor: Any

    def understood(self, statement: Query[Any]) -> Node:
        """The tree of a statement. Nothing is executed."""
        positional, names = numbered(statement)
        self.cursor.execute(f"PREPARE described AS {positional}")
        self.cursor.execute(
            "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'described'"
        )
        types = ", ".join(self.cursor.fetchone()[0]) if names else ""
        self.cursor.execute("DEALLOCATE described")
        tree = _tree(self.cursor, f"({types}) RETURNS SETOF record", f"BEGIN ATOMIC {positional}; END")
        return tree[0][0]  # type: ignore[no-any-return]


def _tree(cursor: Any, signature: str, body: str) -> Any:
    """What PostgreSQL makes of the body of a function in SQL."""
    cursor.execute(f"CREATE FUNCTION pg_temp.described{signature} LANGUAGE sql {body}")
    cursor.execute("SELECT prosqlbody::text FROM pg_proc WHERE oid = 'pg_temp.described'::regproc")
    tree = nodes.read(cursor.fetchone()[0])
    cursor.execute("DROP FUNCTION pg_temp.described")
    return tree


def read(cursor: Any) -> Catalog:
    cursor.execute("SELECT oid, typname, typelem, typrelid FROM pg_type")
    types = {oid: Type(name, element, table) for oid, name, element, table in cursor.fetchall()}
    cursor.execute(
        "SELECT oid, proname, prosqlbody::text, pronamespace = 'public'::regnamespace FROM pg_proc"
    )
    functions, bodies = {}, {}
    for oid, name, body, ours in cursor.fetchall():
        functions[oid] = name
        if ours and body is not None:
            tree = nodes.read(body)
            bodies[oid] = tree if isinstance(tree, Node) else tree[0][0]
    bodies.update(_expressions_in_plpgsql(cursor))
    return Catalog(types, functions, bodies, _columns(cursor), cursor)


def _expressions_in_plpgsql(cursor: Any) -> dict[int, Node]:
    """Likewise of functions in PL/pgSQL, whose one expression could be SQL's as well."""
    cursor.execute(
        "SELECT pg_proc.oid, prosrc, pg_get_function_arguments(pg_proc.oid), pg_get_function_result(pg_proc.oid) "
        "FROM pg_proc JOIN pg_language ON pg_language.oid = prolang "
        "WHERE lanname = 'plpgsql' AND provolatile = 's' AND pronamespace = 'public'::regnamespace"
    )
    return {
        oid: _tree(cursor, f"({arguments}) RETURNS {result}", f"RETURN {match[1]}")
        for oid, source, arguments, result in cursor.fetchall()
        if (match := _ONE_EXPRESSION.fullmatch(source))
    }


def _columns(cursor: Any) -> dict[int, list[Column]]:
    cursor.execute(
        "SELECT conrelid, conkey[1], pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE contype = 'c' AND cardinality(conkey) = 1"
    )
    values = {}
    for table, number, text in cursor.fetchall():
        if match := _IN.fullmatch(text):
            values[table, number] = tuple(_TEXT.findall(match[1]))
    cursor.execute(
        "SELECT attrelid, attnum, atttypid, attnotnull FROM pg_attribute "
        "WHERE attnum > 0 AND attrelid IN (SELECT oid FROM pg_class WHERE relkind IN ('r', 'p')) "
        "ORDER BY attrelid, attnum"
    )
    columns: dict[int, list[Column]] = defaultdict(list)
    for table, number, kind, not_null in cursor.fetchall():
        columns[table].append(Column(kind, not_null, values.get((table, number), ())))
    return columns
