"""The successful answers of each route, from its declaration and entities.toml: status, type and JSON Schema
(2020-12).

Nothing is read before it is first needed: requests to the API itself never need it.
"""

import functools
import importlib
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Any, Literal

import attrs

from api_server.web.routes import Route

Schema = dict[str, Any]

#: The location of schemas in an OpenAPI document.
COMPONENTS = "#/components/schemas/"
_STRINGS = ("date-time", "date", "uri", "uuid", "email")
_DEFINED: dict[str, Schema] = {
    **{name: {"type": name} for name in ("string", "integer", "number", "boolean", "null", "object")},
    **{name: {"type": "string", "format": name} for name in _STRINGS},
    "any": {},
}
_PYTHON = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
_TOKEN = re.compile(r"\s*([\[\]{}|]|<[^>]+>|'[^']*'|[\w-]+)")
#: A key of an entity: its name, whether its value is a list of the object, may be null, and may be missing.
_KEY = re.compile(r"(?P<name>[\w-]+)(?P<listed>\[\])?(?P<nullable> \| null)?(?P<optional>\?)?")


def schema_of_text(text: str) -> Schema:
    """Return the schema that `text` stands for. Raise ValueError if it is not a type."""
    tokens = list(_tokens(text))
    schema = _union(tokens)
    if tokens:
        raise ValueError(f"{text}: nothing may follow a type")
    return schema


def schema_of_keys(keys: Mapping[str, Any], base: Schema | None = None) -> Schema:
    """Return the schema of an object with the keys of `base` and these keys; values are types, or tables of
    an object's keys.

    Raise ValueError if a key or a type cannot be read.
    """
    properties: dict[str, Any] = dict((base or {}).get("properties", {}))
    required = [name for name in (base or {}).get("required", []) if f"{name}?" not in keys]
    for text, value in keys.items():
        if text in ("+", "*"):
            continue
        key = _KEY.fullmatch(text)
        if key is None:
            raise ValueError(f"{text}: this is not a key")
        name = key["name"]
        properties[name] = schema_of_text(value) if isinstance(value, str) else _of_table(value, key)
        if not key["optional"] and name not in required:
            required.append(name)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": "*" in keys and (schema_of_text(keys["*"]) or True),
    }


def _of_table(keys: Mapping[str, Any], key: re.Match[str]) -> Schema:
    schema = schema_of_keys(keys)
    if key["listed"]:
        schema = {"type": "array", "items": schema}
    return schema | {"type": [schema["type"], "null"]} if key["nullable"] else schema


def schema_of_class(text: str) -> Schema:
    """Return the schema of an object with the fields of the attrs class that `<module:Class>` names."""
    attrs_class = _imported(text)
    properties = {name: _of_type(kind) for name, kind in typing.get_type_hints(attrs_class).items()}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _imported(text: str) -> Any:
    module, _, name = text.strip("<>").partition(":")
    return getattr(importlib.import_module(module), name)


def _of_type(kind: Any) -> Schema:
    if isinstance(kind, types.UnionType):
        return any_of(map(_of_type, typing.get_args(kind)))
    if typing.get_origin(kind) is list:
        return {"type": "array", "items": _of_type(typing.get_args(kind)[0])}
    return {"type": _PYTHON[kind]}


def reference(name: str) -> Schema:
    return {"$ref": COMPONENTS + name}


def any_of(arms: Iterable[Schema]) -> Schema:
    """Return the schema of a value that matches one of `arms`; plain types become one list of types, values
    one enumeration."""
    several: list[Schema] = []
    for arm in arms:
        if "enum" in arm and several and "enum" in several[-1]:
            several[-1] = several[-1] | {"enum": several[-1]["enum"] + arm["enum"]}
        else:
            several += [schema for schema in arm.get("anyOf", [arm]) if schema not in several]
    if {} in several:
        return {}
    if {"type": "null"} in several and len(several) == 2:
        (other,) = (schema for schema in several if schema != {"type": "null"})
        if isinstance(other.get("type"), str):
            return other | {"type": [other["type"], "null"]} | _nullable(other)
    if len(several) > 1 and all(
        set(schema) == {"type"} and isinstance(schema["type"], str) for schema in several
    ):
        return {"type": [schema["type"] for schema in several]}
    return several[0] if len(several) == 1 else {"anyOf": several}


def _nullable(schema: Schema) -> Schema:
    return {"enum": [*schema["enum"], None]} if "enum" in schema else {}


def names_in(schema: Any) -> Iterator[str]:
    """Yield the names of the components that a schema refers to."""
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference.removeprefix(COMPONENTS)
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from names_in(part)


def _tokens(text: str) -> Iterator[str]:
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"{text}: {text[position:]!r} is not a type")
        yield match[1]
        position = match.end()


def _union(tokens: list[str]) -> Schema:
    arms = [_next_schema(tokens)]
    while tokens[:1] == ["|"]:
        tokens.pop(0)
        arms.append(_next_schema(tokens))
    return any_of(arms)


def _next_schema(tokens: list[str]) -> Schema:
    if not tokens:
        raise ValueError("a type is missing")
    token = tokens.pop(0)
    if token in ("[", "{"):
        inner = _union(tokens)
        if tokens[:1] != ["]" if token == "[" else "}"]:
            raise ValueError(f"{token} is not closed")
        tokens.pop(0)
        collection = {"type": "array", "items": inner}
        return collection if token == "[" else {"type": "object", "additionalProperties": inner}
    if token.startswith("<"):
        return {"type": "string", "enum": list(typing.get_args(_imported(token)))}
    if token.startswith("'"):
        return {"type": "string", "enum": [token.strip("'")]}
    if token in _DEFINED:
        return dict(_DEFINED[token])
    if not token[0].isupper():
        raise ValueError(f"{token} is no type")
    return reference(token)


#: `bytes` have the type of the file that they belong to.
Form = Literal["json", "text", "bytes"]


@attrs.frozen(kw_only=True)
class Answer:
    """A successful answer. Without a `form` there is no body; `schema` is that of JSON."""

    status: int
    form: Form | None = None
    schema: Schema | None = None


def answers(route: Route) -> tuple[Answer, ...]:
    """Return the successful answers of a route, the usual one first."""
    return _answers(route.answers)


def response_schema(route: Route) -> Schema | None:
    """Return the schema of the route's usual JSON answer, or None if it has none."""
    return next((answer.schema for answer in answers(route) if answer.schema is not None), None)


@functools.cache
def components() -> dict[str, Schema]:
    """Return the schemas of all entities by name, to which other schemas refer as
    `#/components/schemas/<name>`."""
    declared: dict[str, dict[str, Any]] = tomllib.loads(_read("entities.toml"))
    return {name: _entity(name, declared) for name in sorted(declared)}


def with_components(schema: Schema) -> Schema:
    """Return the schema with all entities that it refers to, directly or indirectly."""
    schemas: dict[str, Schema] = {}
    remaining = list(names_in(schema))
    while remaining:
        name = remaining.pop()
        if name not in schemas:
            schemas[name] = components()[name]
            remaining += names_in(schemas[name])
    return schema | {"components": {"schemas": schemas}}


def error_schema() -> Schema:
    """Return the schema of every error answer."""
    return schema_of_text("MessageError | ParameterError")


def _entity(name: str, declared: dict[str, dict[str, Any]]) -> Schema:
    first = declared[name].get("+")
    if first is None:
        return schema_of_keys(declared[name])
    base = schema_of_class(first) if first.startswith("<") else _entity(first, declared)
    return schema_of_keys(declared[name], base)


@functools.cache
def _answers(declared: str) -> tuple[Answer, ...]:
    return tuple(map(_answer, declared.split(",")))


def _answer(text: str) -> Answer:
    status, _, body = text.strip().partition(" ")
    if not 200 <= int(status) <= 499:
        raise ValueError(f"{text}: {status} is no status")
    if body in ("", "text", "bytes"):
        return Answer(status=int(status), form=body or None)  # type: ignore[arg-type]
    return Answer(status=int(status), form="json", schema=schema_of_text(body))


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text()
