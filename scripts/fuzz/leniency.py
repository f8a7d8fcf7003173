"""What the service takes and gives beyond what it describes, added to the description before data is made of it.

Values are described as clients had better send them. That more is taken is said once, in words, at the top of the
description: numbers and truths as text, numbers for texts, lists by commas, and what is empty or null counts as not
sent. GitLab's clients need that. Here the same is said in JSON Schema, for a program that takes a description to the
letter; `api_server/web/params.py` is what it has to agree with.
"""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_NOT_SENT: list[Schema] = [{"type": "null"}, {"const": ""}]
_TRUTHS: list[object] = ["true", "false", "t", "f", "yes", "no", "y", "n", "on", "off", "1", "0", 1, 0]
#: Of a file its own type, which may be any: clients that are generated from the description know only of bytes.
_BYTES = "application/octet-stream"


def describe(document: Schema) -> None:
    """Widens what requests may send, and of what type files are, in place."""
    schemas = document["components"]["schemas"]
    bodies: set[str] = set()
    for operation in _operations(document):
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "query" and _counts_as_not_sent(parameter["schema"]):
                parameter["schema"] = {"anyOf": [parameter["schema"], {"const": ""}]}
        for content in operation.get("requestBody", {}).get("content", {}).values():
            bodies.add(content["schema"].get("$ref", "").rpartition("/")[2])
        for response in operation["responses"].values():
            if _BYTES in response.get("content", {}):
                response["content"]["*/*"] = response["content"][_BYTES]
    for name in bodies - {""}:
        _widen_fields(schemas[name])


def _operations(document: Schema) -> Iterator[Schema]:
    for path in document["paths"].values():
        yield from path.values()


def _widen_fields(schema: Schema) -> None:
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        wider = _widened(field)
        if name not in required:
            wider = {"anyOf": [wider, *(_NOT_SENT if _counts_as_not_sent(field) else _NOT_SENT[:1])]}
        schema["properties"][name] = wider


def _counts_as_not_sent(schema: Schema) -> bool:
    """An empty text is none of its values, but taken."""
    kinds = _kinds(schema)
    return "enum" not in schema and (bool(kinds & {"integer", "number", "boolean"}) or "format" in schema)


def _widened(schema: Schema) -> Schema:
    """What is taken for a value of the schema, null and nothing aside."""
    if "anyOf" in schema:
        return schema | {"anyOf": [*map(_widened_item, schema["anyOf"]), *_one_number(schema["anyOf"])]}
    kinds = _kinds(schema)
    wider: list[Schema] = [schema]
    if "enum" in schema:
        wider += [{"enum": [str(choice) for choice in schema["enum"] if choice is not None]}]
    elif "boolean" in kinds:
        wider.append({"enum": _TRUTHS})
    elif kinds & {"integer", "number"}:
        wider.append({"type": "string", "pattern": "^-?[0-9]{1,9}$"})
    elif "string" in kinds and "format" not in schema:
        wider.append({"type": "number"})
    elif "array" in kinds:
        items = schema.get("items", {})
        if "object" in _kinds(items):
            wider.append({"type": "object", "additionalProperties": items})
        wider[0] = schema | {"items": _widened(items)}
    elif "properties" in schema:
        _widen_fields(schema)
    elif isinstance(schema.get("additionalProperties"), dict):
        wider[0] = schema | {"additionalProperties": _widened(schema["additionalProperties"])}
    return wider[0] if len(wider) == 1 else {"anyOf": wider}


def _widened_item(arm: Schema) -> Schema:
    """Lists by commas are texts, and never numbers."""
    return arm if "string" in _kinds(arm) else _widened(arm)


def _one_number(arms: list[Schema]) -> list[Schema]:
    """A list of one may be that one, where numbers are in it."""
    items = [arm["items"] for arm in arms if "items" in arm]
    return [{"type": "integer"}] if items and "enum" not in items[0] else []


def _kinds(schema: Schema) -> set[str]:
    kinds = schema.get("type", [])
    return {kinds} if isinstance(kinds, str) else set(kinds)
