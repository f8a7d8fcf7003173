"""What a parameter's annotation accepts, as JSON Schema: the same annotations by which `web/params.py` reads requests.

Values are described as clients had better send them. That more is taken (numbers and truths as text, an empty text for
what is not sent) is said once, in the description of the whole.
"""

import datetime
import enum
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

import attrs
import orjson

from api_server.web.params import MAX_ITEMS, AtMost, CommaList, Unset, public_name

Schema = dict[str, Any]

_SIMPLE: Mapping[Any, Schema] = {
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.datetime: {"type": "string", "format": "date-time"},
}


#: What a field's metadata says of values that a validator refuses: the keywords for it.
_TOLD = {"pattern": "pattern", "most": "maxItems", "least": "minimum", "greatest": "maximum"}


def wanted(field: "attrs.Attribute[Any]") -> Any:
    """The annotation that says what the field takes: its own, or where a converter takes anything, what it makes sense
    of (`metadata={"takes": ...}`)."""
    return field.metadata.get("takes", field.type)


def schema_of(annotation: Any) -> Schema:
    """What JSON of a body fits the annotation."""
    arms = [arm for arm in _arms(annotation) if arm is not Unset]
    real = [arm for arm in arms if arm is not type(None)]
    schemas = [_schema_of_one(arm) for arm in real]
    if typing.get_origin(real[0]) is CommaList:
        schemas.append(_with_commas(schemas[0]["items"]))
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return _nullable(schema) if len(real) < len(arms) else schema


def in_text(annotation: Any) -> Schema:
    """What fits it in a path, a query or a form, where there is no null."""
    real = [arm for arm in _arms(annotation) if arm not in (Unset, type(None))]
    schemas = [_schema_of_one(arm) for arm in real]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _with_commas(items: Schema) -> Schema:
    """A list as one text."""
    described: Schema = {"type": "string", "description": "The same with commas between them."}
    if "enum" in items:
        one = "|".join(map(str, items["enum"]))
    elif items.get("type") == "integer":
        one = "-?[0-9]+"
    else:
        return described
    return described | {"pattern": f"^(({one})(,({one}))*)?$"}


def single(annotation: Any) -> Any:
    """The annotation without null and `Unset`."""
    return next(arm for arm in _arms(annotation) if arm not in (Unset, type(None)))


def object_of(parameters: type, without: frozenset[str] = frozenset()) -> Schema:
    """The JSON object with the fields of an attrs class, by the names that are sent."""
    fields = [field for field in attrs.fields(parameters) if public_name(field) not in without]
    schema: Schema = {
        "type": "object",
        "properties": {
            public_name(field): _default_in_words(field_schema(field, schema_of)) for field in fields
        },
    }
    if required := [public_name(field) for field in fields if is_required(field)]:
        schema["required"] = required
    return schema


def field_schema(field: "attrs.Attribute[Any]", describe: Callable[[Any], Schema]) -> Schema:
    """What the field takes, with its default."""
    schema = dict(describe(wanted(field)))
    if "minimum" in field.metadata:
        schema["minimum"] = field.metadata["minimum"]
    for told, keyword in _TOLD.items():
        if told in field.metadata:
            schema[keyword] = field.metadata[told]
    if field.metadata.get("present"):
        schema = _present(schema)
    if (default := _default(field)) is not None:
        schema["default"] = default
    return schema


def _default_in_words(schema: Schema) -> Schema:
    """Generated clients demand members of bodies that have a `default` (openapi-typescript), or always send it."""
    default = schema.pop("default", "")
    if default == "":
        return schema
    shown = default if isinstance(default, str) else orjson.dumps(default).decode()
    return schema | {"description": f"Default: `{shown}`."}


def _present(schema: Schema) -> Schema:
    """Without nothing: an empty text or list, or one of blanks."""
    if "anyOf" in schema:
        return schema | {"anyOf": [_present(arm) for arm in schema["anyOf"]]}
    if schema.get("type") == "array":
        return schema | {"minItems": 1}
    return {"pattern": r"\S"} | schema | {"minLength": 1}


def is_required(field: "attrs.Attribute[Any]") -> bool:
    return field.default is attrs.NOTHING


def _default(field: "attrs.Attribute[Any]") -> Any:
    """As JSON; None where nothing is to be told."""
    if isinstance(field.default, (bool, int, float, str)) and not isinstance(field.default, enum.Enum):
        return field.default
    return field.default.value if isinstance(field.default, enum.IntEnum) else None


def _arms(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _schema_of_one(kind: Any) -> Schema:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        bound = next(bound for bound in arguments[1:] if isinstance(bound, AtMost))
        return {"type": "string", "maxLength": bound.characters}
    if origin is Literal:
        return _enumeration(arguments)
    if origin in (list, CommaList):
        return {"type": "array", "items": schema_of(arguments[0]), "maxItems": MAX_ITEMS}
    if origin is dict:
        return {"type": "object", "additionalProperties": True if arguments[1] is Any else {"type": "string"}}
    if kind is Any:
        return {}
    if attrs.has(kind):
        return object_of(kind)
    if issubclass(kind, enum.Enum):
        names = {"x-enum-varnames": [member.name for member in kind]}  # by which generated clients call them
        return _enumeration([member.value for member in kind]) | names
    return dict(_SIMPLE[kind])


def _enumeration(choices: Iterable[Any]) -> Schema:
    """Of values that differ in spelling only (`assigned-to-me`), the first: generated clients make names of them."""
    spelt = {str(choice).replace("-", "_"): choice for choice in reversed(list(choices))}
    return {
        "type": "string" if isinstance(next(iter(spelt.values())), str) else "integer",
        "enum": list(reversed(spelt.values())),
    }


def _nullable(schema: Schema) -> Schema:
    if "enum" in schema:
        return schema | {"type": [schema["type"], "null"], "enum": [*schema["enum"], None]}
    if isinstance(schema.get("type"), str):
        return schema | {"type": [schema["type"], "null"]}
    return schema if not schema else {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}


def is_list(kind: Any) -> bool:
    return typing.get_origin(kind) in (list, CommaList)
