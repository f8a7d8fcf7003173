"""What expressions yield that are no functions. Each is given the evaluator, the expression and its scope."""

from typing import TYPE_CHECKING

import attrs

from scripts.schemas import functions, values
from scripts.schemas.functions import Reader
from scripts.schemas.nodes import Node
from scripts.schemas.ranges import Row, Scope
from scripts.schemas.values import NULL, Value, union

if TYPE_CHECKING:
    from scripts.schemas.evaluator import Evaluator

TEXT_TYPES = ("text", "varchar", "name", "cstring", "unknown")
#: Of `(SELECT ...)` and `ARRAY(SELECT ...)`; others are questions.
_SCALAR, _ARRAY = "4", "6"


def type_of(node: Node) -> int:
    kinds = [value for name, value in node.fields.items() if name.endswith("type")]
    return int(kinds[0]) if kinds else 0


def _var(_this: "Evaluator", node: Node, scope: Scope) -> Value:
    owner = scope.above(node.number("varlevelsup"))
    return owner.column(node.number("varno"), node.number("varattno"), node.number("vartype"))


def _param(this: "Evaluator", node: Node, scope: Scope) -> Value:
    if scope.given is not None:
        given = scope.given[node.number("paramid") - 1]
        return Value({}, given.nullable) if isinstance(given, Row) else given
    return this.of_type(node.number("paramtype"))


def _field(this: "Evaluator", node: Node, scope: Scope) -> Value:
    row = this.row(node["arg"], scope)
    if row is None:
        return this.of_type(node.number("resulttype")).or_null()
    return row.column(node.number("fieldnum")).or_null(row.nullable)


def _const(this: "Evaluator", node: Node, _scope: Scope) -> Value:
    if node["constisnull"] == "true":
        return NULL
    kind = this.catalog.types[node.number("consttype")].name
    written = node.constant
    if kind in ("cstring", "unknown"):
        return values.constant(written.rstrip(b"\0").decode())
    if kind in (*TEXT_TYPES, "json"):
        size = int.from_bytes(written[:4], "little") >> 2  # with its own four bytes
        found = values.constant(written[4:size].decode())
        return values.parsed(found) if kind == "json" else found
    return this.of_type(node.number("consttype"))


def _case(this: "Evaluator", node: Node, scope: Scope) -> Value:
    found = []
    for when in node.list("args"):
        known = None if node["arg"] is not None else _known(this, when["expr"], scope)
        if known is not False:
            found.append(this.value(when["result"], scope))
        if known is True:
            return union(found)
    return union([*found, this.value(node["defresult"], scope)])


def _known(this: "Evaluator", condition: Node, scope: Scope) -> bool | None:
    """What a question for null is answered wherever what it asks for is never null."""
    if condition.kind != "NULLTEST" or this.value(condition["arg"], scope).nullable:
        return None
    return bool(condition["nulltesttype"] == "1")


def _coalesce(this: "Evaluator", node: Node, scope: Scope) -> Value:
    found: list[Value] = []
    for value in this.arguments(node, scope):
        found.append(value)
        if not value.nullable:
            break
    return attrs.evolve(union(found), nullable=found[-1].nullable)


def _by_text(this: "Evaluator", node: Node, scope: Scope) -> Value:
    """A cast by way of text."""
    kind = node.number("resulttype")
    if this.is_text(kind):
        return this.text(node["arg"], scope)
    value = this.value(node["arg"], scope)
    is_json = this.catalog.types[kind].name in ("json", "jsonb")
    return values.parsed(value) if is_json else this.of_type(kind).or_null(value.nullable)


def _sublink(this: "Evaluator", node: Node, scope: Scope) -> Value:
    inner = Scope(this, node["subselect"], scope)
    if node["subLinkType"] == _SCALAR:
        return inner.output(1).or_null(not inner.always_yields)
    if node["subLinkType"] == _ARRAY:
        return Value({"type": "array", "items": inner.output(1).json})
    return Value({"type": "boolean"})


def _boolean(_this: "Evaluator", _node: Node, _scope: Scope) -> Value:
    return Value({"type": "boolean"})


READERS: dict[str, Reader] = {
    "VAR": _var,
    "PARAM": _param,
    "FIELDSELECT": _field,
    "CONST": _const,
    "FUNCEXPR": functions.function,
    "OPEXPR": functions.operator,
    "AGGREF": functions.aggregate,
    "CASEEXPR": _case,
    "COALESCEEXPR": _coalesce,
    "COERCEVIAIO": _by_text,
    "RELABELTYPE": lambda this, node, scope: this.value(node["arg"], scope),
    "SUBLINK": _sublink,
    "NULLTEST": _boolean,
    "SCALARARRAYOPEXPR": _boolean,
    "BOOLEXPR": lambda this, node, scope: Value(
        {"type": "boolean"}, any(value.nullable for value in this.arguments(node, scope))
    ),
    "WINDOWFUNC": lambda this, node, _: this.of_type(node.number("wintype")),
}
