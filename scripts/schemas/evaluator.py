"""What a statement's entity is, as PostgreSQL has understood the statement."""

from collections.abc import Mapping
from typing import Any

from api_server.description.schemas import notation
from api_server.description.schemas.notation import Schema
from scripts.schemas import values
from scripts.schemas.catalog import Catalog
from scripts.schemas.expressions import READERS, TEXT_TYPES, type_of
from scripts.schemas.nodes import Node
from scripts.schemas.ranges import Row, Scope
from scripts.schemas.values import Value

_INTEGER: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_STRING: Schema = {"type": "string"}
_OF_TYPES: dict[str, Schema] = {
    "int2": _INTEGER,
    "int4": _INTEGER,
    "int8": _INTEGER,
    "numeric": _NUMBER,
    "float4": _NUMBER,
    "float8": _NUMBER,
    "text": _STRING,
    "varchar": _STRING,
    "name": _STRING,
    "bytea": _STRING,
    "uuid": {"type": "string", "format": "uuid"},
    "bool": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "timestamptz": {"type": "string", "format": "date-time"},
}


class Evaluator:
    """`names` are the entities that functions make, by the function's name; they are collected in `entities`."""

    def __init__(self, catalog: Catalog, names: Mapping[str, str]) -> None:
        self.catalog = catalog
        self.names = names
        self.entities: dict[str, Schema] = {}

    def entity(self, statement: Any) -> Schema:
        """What the column `entity` of the CTE `entities` of a statement is."""
        whole = Scope(self, self.catalog.understood(statement), None)
        (found,) = (cte for cte in whole.query.list("cteList") if cte["ctename"] == "entities")
        (column,) = (
            one.number("resno") for one in found["ctequery"].list("targetList") if one["resname"] == "entity"
        )
        return Scope(self, found["ctequery"], whole).output(column).json

    def value(self, node: Any, scope: Scope) -> Value:
        """What the expression yields. What is not looked into is known by its type."""
        read = READERS.get(node.kind)
        return read(self, node, scope) if read is not None else self.of_type(type_of(node)).or_null()

    def of_type(self, number: int) -> Value:
        found = self.catalog.types.get(number)
        if found is None:
            return Value({})
        if found.name.startswith("_"):
            return Value({"type": "array", "items": self.of_type(found.element).json})
        return Value(_OF_TYPES.get(found.name, {}))

    def is_text(self, number: int) -> bool:
        return number in self.catalog.types and self.catalog.types[number].name in TEXT_TYPES

    def stored(self, table: int, number: int) -> Value:
        column = self.catalog.columns[table][number - 1]
        if column.values:
            return Value({"type": "string", "enum": list(column.values)}, not column.not_null)
        return self.of_type(column.type).or_null(not column.not_null)

    def row(self, node: Node, scope: Scope) -> Row | None:
        """The row that an expression is; None for what is none. What a statement is given is there."""
        if node.kind == "VAR" and node["varattno"] == "0":
            return scope.above(node.number("varlevelsup")).row(node.number("varno"))
        if node.kind != "PARAM":
            return None
        if scope.given is not None:
            given = scope.given[node.number("paramid") - 1]
            return given if isinstance(given, Row) else None
        found = self.catalog.types[node.number("paramtype")]
        return Row(lambda column: self.stored(found.table, column)) if found.table else None

    def called(self, number: int, given: list[Value | Row]) -> Value:
        """What one of our functions returns to these arguments."""
        body, name = self.catalog.bodies[number], self.catalog.functions[number]
        value = Scope(self, body, None, given).output(1)
        if name not in self.names:
            return value
        entity = self.names[name]
        if entity not in self.entities:
            self.entities[entity] = Scope(self, body, None).output(1).schema or {}
        return Value(notation.reference(entity), value.nullable)

    def called_for_rows(self, node: Node, scope: Scope) -> Scope | None:
        """The query that one of our functions is, where a statement reads from it."""
        body = self.catalog.bodies.get(node.number("funcid")) if node.kind == "FUNCEXPR" else None
        return None if body is None else Scope(self, body, None, self.given(node, scope))

    def given(self, node: Node, scope: Scope) -> list[Value | Row]:
        """The arguments of a call."""
        return [self.row(one, scope) or self.value(one, scope) for one in node.list("args")]

    def text(self, node: Node, scope: Scope) -> Value:
        """The text that the expression is, or is cast to."""
        value = self.value(node, scope)
        return value if self.is_text(type_of(node)) else values.text_of(value, self.entities)

    def arguments(self, node: Node, scope: Scope) -> list[Value]:
        return [self.value(one, scope) for one in node.list("args")]
