"""Types as answers.toml and entities.toml write them, and the JSON Schemas (2020-12) that they stand for."""

import importlib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Schema = dict[str, Any]

#: Where an OpenAPI document has its schemas.
COMPONENTS = "#/components/schemas/"
_STRINGS = ("date-time", "date", "uri", "uuid", "email")
_NAMED: dict[str, Schema] = {
    **{name: {"type": name} for name in ("string", "integer", "number", "boolean", "null", "object")},
    **{name: {"type": "string", "format": name} for name in _STRINGS},
    "any": {},
}
_PYTHON = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
_TOKEN = re.compile(r"\s*([\[\]{}|]|<[^>]+>|'[^']*'|[\w-]+)")
#: A key of an entity: whether its object stands in a list, may be null, and may be missing.
_KEY = re.compile(r"(?P<name>[\w-]+)(?P<listed>\[\])?(?P<nullable> \| null)?(?P<optional>\?)?")


def schema(text: str) -> Schema:
    """What `text` stands for. Raises ValueError where it is no type."""
    tokens = list(_tokens(text))
    found = _union(tokens)
    if tokens:
        raise ValueError(f"{text}: nothing can follow that")
    return found


def of_keys(keys: Mapping[str, Any], base: Schema | None = None) -> Schema:
    """An object of the keys of `base` and of these, which are types, or tables of an object's keys.

    Raises ValueError where a key or a type cannot be read.
    """
    properties: dict[str, Any] = dict((base or {}).get("properties", {}))
    required = [name for name in (base or {}).get("required", []) if f"{name}?" not in keys]
    for text, value in keys.items():
        if text in ("+", "*"):
            continue
        key = _KEY.fullmatch(text)
        if key is None:
            raise ValueError(f"{text}: no key")
        name = key["name"]
        properties[name] = schema(value) if isinstance(value, str) else _of_table(value, key)
        if not key["optional"] and name not in required:
            required.append(name)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": "*" in keys and (schema(keys["*"]) or True),
    }


def _of_table(keys: Mapping[str, Any], key: re.Match[str]) -> Schema:
    found = of_keys(keys)
    if key["listed"]:
        found = {"type": "array", "items": found}
    return found | {"type": [found["type"], "null"]} if key["nullable"] else found


def of_class(text: str) -> Schema:
    """An object with the fields of the attrs class that `<module:Class>` names."""
    found = _imported(text)
    properties = {name: _of_type(kind) for name, kind in typing.get_type_hints(found).items()}
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
    """What is one of `arms`; plain types are one list of types, and values one enumeration."""
    several: list[Schema] = []
    for arm in arms:
        if "enum" in arm and several and "enum" in several[-1]:
            several[-1] = several[-1] | {"enum": several[-1]["enum"] + arm["enum"]}
        else:
            several += [one for one in arm.get("anyOf", [arm]) if one not in several]
    if {} in several:
        return {}
    if {"type": "null"} in several and len(several) == 2:
        (other,) = (one for one in several if one != {"type": "null"})
        if isinstance(other.get("type"), str):
            return other | {"type": [other["type"], "null"]} | _nullable(other)
    if len(several) > 1 and all(set(one) == {"type"} and isinstance(one["type"], str) for one in several):
        return {"type": [one["type"] for one in several]}
    return several[0] if len(several) == 1 else {"anyOf": several}


def _nullable(schema: Schema) -> Schema:
    return {"enum": [*schema["enum"], None]} if "enum" in schema else {}


def names_in(schema: Any) -> Iterator[str]:
    """The components that a schema refers to."""
    if isinstance(schema, dict):
        if isinstance(named := schema.get("$ref"), str):
            yield named.removeprefix(COMPONENTS)
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from names_in(part)


def _tokens(text: str) -> Iterator[str]:
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"{text}: not a type from {text[position:]!r}")
        yield match[1]
        position = match.end()


def _union(tokens: list[str]) -> Schema:
    arms = [_one(tokens)]
    while tokens[:1] == ["|"]:
        tokens.pop(0)
        arms.append(_one(tokens))
    return any_of(arms)


def _one(tokens: list[str]) -> Schema:
    if not tokens:
        raise ValueError("a type is missing")
    token = tokens.pop(0)
    if token in ("[", "{"):
        inner = _union(tokens)
        if tokens[:1] != ["]" if token == "[" else "}"]:
            raise ValueError(f"{token} is not closed")
        tokens.pop(0)
        of = {"type": "array", "items": inner}
        return of if token == "[" else {"type": "object", "additionalProperties": inner}
    if token.startswith("<"):
        return {"type": "string", "enum": list(typing.get_args(_imported(token)))}
    if token.startswith("'"):
        return {"type": "string", "enum": [token.strip("'")]}
    if token in _NAMED:
        return dict(_NAMED[token])
    if not token[0].isupper():
        raise ValueError(f"{token} is no type")
    return reference(token)
