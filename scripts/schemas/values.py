"""What an expression can yield: as JSON, and as a text of which JSON is made."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from api_server.description.schemas import notation
from api_server.description.schemas.notation import Schema


@attrs.frozen
class Hole:
    """A JSON value in a text."""

    schema: Schema


@attrs.frozen
class Members:
    """The members of an object in a text, without the braces around them."""

    schema: Schema


#: A text that is partly known: characters, and what stands between them.
Text = tuple["str | Hole | Members", ...]


@attrs.frozen
class Value:
    """`schema` is what it is in JSON where it is not null. A text may be known to be one of `texts`."""

    schema: Schema | None
    nullable: bool = False
    texts: tuple[Text, ...] | None = None

    @property
    def json(self) -> Schema:
        arms = [] if self.schema is None else [self.schema]
        return notation.any_of([*arms, {"type": "null"}] if self.nullable or not arms else arms)

    def or_null(self, nullable: bool = True) -> "Value":
        return attrs.evolve(self, nullable=self.nullable or nullable)


NULL = Value(None, nullable=True)


def constant(text: str) -> Value:
    return Value({"type": "string", "enum": [text]}, texts=((text,),))


def union(values: Sequence[Value]) -> Value:
    """What is one of these."""
    schemas = [value.schema for value in values if value.schema is not None]
    texts = [value.texts for value in values if value.schema is not None]
    return Value(
        merged(schemas) if schemas else None,
        any(value.nullable for value in values),
        None if None in texts else tuple(one for several in texts for one in several or ()),
    )


def merged(schemas: Iterable[Schema]) -> Schema:
    """Objects become one, whose keys are there where all have them; so do known texts."""
    found: list[Schema] = []
    nullable = False
    for given in schemas:
        schema, with_null = _without_null(given)
        nullable |= with_null
        if schema is None:
            continue
        for index, other in enumerate(found):
            if (both := _both(other, schema)) is not None:
                found[index] = both
                break
        else:
            found.append(schema)
    return notation.any_of([*found, {"type": "null"}] if nullable or not found else found)


def _without_null(schema: Schema) -> tuple[Schema | None, bool]:
    """The schema of what is not null, and whether null fits too."""
    match schema:
        case {"type": "null"}:
            return None, True
        case {"type": [kind, "null"]}:
            values = {"enum": [one for one in schema["enum"] if one is not None]} if "enum" in schema else {}
            return schema | {"type": kind} | values, True
        case {"anyOf": arms} if {"type": "null"} in arms:
            return notation.any_of(arm for arm in arms if arm != {"type": "null"}), True
        case _:
            return schema, False


def _both(one: Schema, other: Schema) -> Schema | None:
    if one == other:
        return one
    if one.get("type") == other.get("type") == "string":
        if "enum" in one and "enum" in other:
            return {"type": "string", "enum": list(dict.fromkeys([*one["enum"], *other["enum"]]))}
        return {"type": "string"}
    if "properties" in one and "properties" in other:
        return _object_of_both(one, other)
    if one.get("type") == other.get("type") == "array":
        items = [schema["items"] for schema in (one, other) if schema["items"] != {}]
        return {"type": "array", "items": merged(items) if items else {}}
    return None


def _object_of_both(one: Schema, other: Schema) -> Schema:
    names = dict.fromkeys([*one["properties"], *other["properties"]])
    properties = {
        name: merged([each["properties"][name] for each in (one, other) if name in each["properties"]])
        for name in names
    }
    required = [name for name in one["required"] if name in other["required"]]
    return an_object(
        properties, required, is_open=one["additionalProperties"] or other["additionalProperties"]
    )


def an_object(properties: dict[str, Schema], required: Iterable[str], *, is_open: bool = False) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": is_open,
    }


def text_of(value: Value, known: Mapping[str, Schema]) -> Value:
    """`value::text` of JSON; `known` are the entities that schemas refer to."""
    schema = value.schema
    if schema is None or value.texts is not None:
        return value
    if "$ref" in schema:
        schema = known[schema["$ref"].removeprefix(notation.COMPONENTS)]
    pieces: Text = ("{", Members(schema), "}") if "properties" in schema else (Hole(schema),)
    return Value({"type": "string"}, value.nullable, (pieces,))


def concatenated(values: Sequence[Value]) -> Value:
    nullable = any(value.nullable for value in values)
    if any(value.schema is None for value in values):
        return NULL
    if any(value.texts is None for value in values):
        return Value({"type": "string"}, nullable)
    texts = [
        tuple(itertools.chain(*each)) for each in itertools.product(*(one.texts or () for one in values))
    ]
    return Value({"type": "string"}, nullable, tuple(texts))


def trimmed(value: Value, *, first: int = 0, last: int = 0) -> Value:
    """The text without so many of its characters at its ends; any text, where those are not known."""
    if value.texts is None or any(isinstance(text[at], Hole) for text in value.texts for at in (0, -1)):
        return Value({"type": "string"}, value.nullable)
    return attrs.evolve(value, texts=tuple(_trimmed(text, first, last) for text in value.texts))


def _trimmed(text: Text, first: int, last: int) -> Text:
    """Its ends are characters: the braces of an object."""
    begin, end = str(text[0])[first:], str(text[-1])
    if len(text) == 1:
        return (begin[: len(begin) - last],)
    return (begin, *text[1:-1], end[: len(end) - last])


def parsed(value: Value) -> Value:
    """`value::json` of a text."""
    if value.texts is None:
        return Value({} if value.schema is not None else None, value.nullable)
    found = [_parsed(text) for text in value.texts]
    schemas = [schema for schema in found if schema != {"type": "null"}]
    return Value(merged(schemas), value.nullable or len(schemas) < len(found))


def _parsed(text: Text) -> Schema:
    """Read as JSON with names in the place of what is not known."""
    marks = {f"\0{index}": piece for index, piece in enumerate(text) if not isinstance(piece, str)}
    names = {id(piece): name for name, piece in marks.items()}
    written = ""
    for piece in text:
        match piece:
            case Hole():
                written += json.dumps(names[id(piece)])
            case Members():
                written += json.dumps(names[id(piece)]) + ": 0"
            case _:
                written += piece
    return _schema_of(json.loads(written), marks)


def _schema_of(value: Any, marks: dict[str, Any]) -> Schema:
    match value:
        case dict():
            members = list(_members(value, marks))
            optional = {name for name, _, always in members if not always}
            properties = {name: schema for name, schema, _ in members}
            return an_object(properties, (name for name in properties if name not in optional))
        case list():
            return (
                {"type": "array", "items": merged([_schema_of(one, marks) for one in value])}
                if value
                else EMPTY
            )
        case str() if value in marks:
            return marks[value].schema  # type: ignore[no-any-return]
        case None:
            return {"type": "null"}
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case _:
            return {"type": "string", "enum": [value]}


def union_of_members(given: Sequence[Value]) -> Value:
    """`one || other` of objects, of which some are not known."""
    known = [value.schema or {} for value in given if "properties" in (value.schema or {})]
    properties = {name: schema for one in known for name, schema in one["properties"].items()}
    return Value(an_object(properties, properties, is_open=len(known) < len(given)))


EMPTY: Schema = {"type": "array", "items": {}}


def _members(value: dict[str, Any], marks: dict[str, Any]) -> Iterator[tuple[str, Schema, bool]]:
    for name, one in value.items():
        if name in marks:
            schema = marks[name].schema
            for inner, of_inner in schema["properties"].items():
                yield inner, of_inner, inner in schema["required"]
        else:
            yield name, _schema_of(one, marks), True
