"""Requests that the service accepts beyond its description, and findings of schemathesis that are not failures."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

Schema = dict[str, Any]

_NOT_SENT: list[Schema] = [{"type": "null"}, {"const": ""}]
_TRUTHS: list[object] = ["true", "false", "t", "f", "yes", "no", "y", "n", "on", "off", "1", "0", 1, 0]
#: The described type of a file. Files may be sent with any type, but clients that are generated from the description
#: support only this one.
_BYTES = "application/octet-stream"


def describe(document: Schema) -> None:
    """Widen in place the described requests, and the types of files."""
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
    """Return whether an empty text is not a value of the schema, but counts as not sent."""
    kinds = _kinds(schema)
    return "enum" not in schema and (bool(kinds & {"integer", "number", "boolean"}) or "format" in schema)


def _widened(schema: Schema) -> Schema:
    """Return a schema of all values that the service accepts for this one, except null and an empty text."""
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
    """Widen an alternative, unless it is a text: texts are lists separated by commas, and never numbers."""
    return arm if "string" in _kinds(arm) else _widened(arm)


def _one_number(arms: list[Schema]) -> list[Schema]:
    """Return the alternative of a single number if the list may have numbers."""
    items = [arm["items"] for arm in arms if "items" in arm]
    return [{"type": "integer"}] if items and "enum" not in items[0] else []


def _kinds(schema: Schema) -> set[str]:
    kinds = schema.get("type", [])
    return {kinds} if isinstance(kinds, str) else set(kinds)


#: Statuses that refuse a request because of the state rather than its content, in addition to those that schemathesis
#: knows.
_STATE_FORBIDS = frozenset({405, 406, 412, 413, 416, 422})
#: Errors about parameters that depend on each other. The description states this in words only, since generated
#: clients cannot express it in their types.
_DEPENDENT = re.compile(
    r"(is|are) missing\b|must be provided$|are mutually exclusive$|^allowed_to_\w+ does not have"
)
#: Errors about features of GitLab that this service does not have: `expires_at is not supported by this service`.
_UNSUPPORTED = re.compile(r"(is|are) not supported by this service$")
#: Errors about formats for which JSON Schema has no name or another definition, for example of white space.
_FORMAT = re.compile(r"contains an invalid email address$|is empty$")
#: Errors about orders: each list has its own ones.
_ORDER = re.compile(r"^order_by does not have a valid value$")


def counts(failure: str, case: Any, status: int, body: bytes) -> bool:
    """Return whether the failure (the name of its class) of the case is a real one."""
    if failure == "RejectedPositiveData":
        return not _is_about_state(status, body)
    if failure == "UnsupportedMethodResponse":
        return not _is_another_operation(case)
    return True


def _is_about_state(status: int, body: bytes) -> bool:
    """Return whether the state forbids the request. A 400 with `error` means that a request cannot be read; a 400 with
    `message` means that it cannot be carried out."""
    if status != 400:
        return status in _STATE_FORBIDS
    answer = json.loads(body)
    error = answer.get("error")
    return error is None or any(
        reason.search(error) for reason in (_DEPENDENT, _UNSUPPORTED, _FORMAT, _ORDER)
    )


def _is_another_operation(case: Any) -> bool:
    """Return whether another operation has that path: `PUT /runners/all` is `PUT /runners/{id}`."""
    path = urlsplit(case.formatted_path).path
    for template, item in case.operation.schema.raw_schema["paths"].items():
        fitting = re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path)
        if fitting and template != case.operation.path and case.method.lower() in item:
            return True
    return False
