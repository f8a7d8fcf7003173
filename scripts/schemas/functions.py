"""What functions, operators and aggregates yield."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from api_server.description.schemas.notation import Schema
from scripts.schemas import values
from scripts.schemas.nodes import Node
from scripts.schemas.ranges import Scope
from scripts.schemas.values import Value

if TYPE_CHECKING:
    from scripts.schemas.evaluator import Evaluator

Reader = Callable[["Evaluator", Node, Scope], Value]

#: What our functions of one text yield, where their text alone does not say it.
_TEXTS: dict[str, Schema] = {
    "iso8601": {"type": "string", "format": "date-time"},
    "web_url": {"type": "string", "format": "uri"},
    "ssh_url": {"type": "string"},
}
#: Those that may yield null of what is not null; others are not called with null, and yield none.
_MAY_BE_NULL = {
    "json_object_field", "json_object_field_text", "jsonb_object_field", "jsonb_object_field_text",
    "json_extract_path", "json_extract_path_text", "jsonb_extract_path", "jsonb_extract_path_text",
    "json_array_element", "jsonb_array_element", "array_position", "substring", "regexp_match", "array_length",
    "upper", "lower",
}  # fmt: skip


def function(this: "Evaluator", node: Node, scope: Scope) -> Value:
    number = node.number("funcid")
    name = this.catalog.functions[number]
    if name in _BUILDERS:
        return _BUILDERS[name](this, node, scope)
    if name in _TEXTS:
        return Value(_TEXTS[name], any(value.nullable for value in this.arguments(node, scope)))
    if number in this.catalog.bodies:
        return this.called(number, this.given(node, scope))
    return _strict(this, node, scope, name, node.number("funcresulttype"))


def _strict(this: "Evaluator", node: Node, scope: Scope, name: str, kind: int) -> Value:
    nullable = any(value.nullable for value in this.arguments(node, scope))
    return this.of_type(kind).or_null(nullable or name in _MAY_BE_NULL)


def operator(this: "Evaluator", node: Node, scope: Scope) -> Value:
    name = this.catalog.functions[node.number("opfuncid")]
    if name in ("textcat", "textanycat", "anytextcat"):
        return values.concatenated([this.text(one, scope) for one in node.list("args")])
    if name == "jsonb_concat":
        return values.union_of_members(this.arguments(node, scope))
    if name == "json_array_element":
        schema = this.value(node.list("args")[0], scope).schema or {}
        return Value(schema.get("items", {}), nullable=True)
    return _strict(this, node, scope, name, node.number("opresulttype"))


def aggregate(this: "Evaluator", node: Node, scope: Scope) -> Value:
    name = this.catalog.functions[node.number("aggfnoid")]
    given = [this.value(entry["expr"], scope) for entry in node.list("args") if entry["resjunk"] == "false"]
    if name in ("json_agg", "jsonb_agg"):
        return Value({"type": "array", "items": given[0].json}, nullable=True)
    if name in ("max", "min"):
        return given[0].or_null()
    return this.of_type(node.number("aggtype")).or_null(name != "count")


def _object(this: "Evaluator", node: Node, scope: Scope) -> Value:
    keys, given = node.list("args")[::2], node.list("args")[1::2]
    properties = {
        _text(this, key, scope): this.value(value, scope).json for key, value in zip(keys, given, strict=True)
    }
    return Value(values.an_object(properties, properties))


def _text(this: "Evaluator", node: Node, scope: Scope) -> str:
    (pieces,) = this.value(node, scope).texts or ()
    (text,) = pieces
    return str(text)


def _array(this: "Evaluator", node: Node, scope: Scope) -> Value:
    found = [value.json for value in this.arguments(node, scope)]
    return Value({"type": "array", "items": values.merged(found) if found else {}})


def _without_ends(this: "Evaluator", node: Node, scope: Scope) -> Value:
    """`left(text, -1)` and `substr(text, 2)`."""
    text, number = node.list("args")
    count = int.from_bytes(number.constant[:4], "little", signed=True)
    return values.trimmed(this.value(text, scope), first=max(count - 1, 0), last=max(-count, 0))


def _trimmed(this: "Evaluator", node: Node, scope: Scope) -> Value:
    """`trim('{}' FROM text)`, for objects."""
    return values.trimmed(this.value(node.list("args")[0], scope), first=1, last=1)


def _as_json(this: "Evaluator", node: Node, scope: Scope) -> Value:
    value = this.value(node.list("args")[0], scope)
    return Value(value.schema, value.nullable)


_BUILDERS: dict[str, Reader] = {
    "json_build_object": _object,
    "jsonb_build_object": _object,
    "json_build_array": _array,
    "jsonb_build_array": _array,
    "left": _without_ends,
    "substr": _without_ends,
    "btrim": _trimmed,
    "to_json": _as_json,
    "text": lambda this, node, scope: values.text_of(this.value(node.list("args")[0], scope), this.entities),
}
