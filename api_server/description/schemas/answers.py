"""What each route answers where it succeeds: status, type and JSON Schema (2020-12); and the entities in them.

Nothing here is read before somebody asks: the API's own requests never need it.
"""

import functools
import tomllib
from importlib import resources
from typing import Any, Literal

import attrs

from api_server.description.schemas import notation
from api_server.description.schemas.notation import Schema
from api_server.web.routes import Route

#: `bytes` have whatever type the file has that they are of.
Form = Literal["json", "text", "bytes"]


@attrs.frozen(kw_only=True)
class Answer:
    """One way to succeed. Without a `form` there is no body; `schema` is that of JSON."""

    status: int
    form: Form | None = None
    schema: Schema | None = None


def answers(route: Route) -> tuple[Answer, ...]:
    """The ways in which a route succeeds, the usual one first. Raises KeyError for one that answers.toml lacks."""
    return _answers()[f"{route.method} {route.path}"]


def response_schema(route: Route) -> Schema | None:
    """That of the route's usual JSON answer; None where that has none."""
    return next((answer.schema for answer in answers(route) if answer.schema is not None), None)


@functools.cache
def components() -> dict[str, Schema]:
    """Every entity by its name, to which schemas refer as `#/components/schemas/<name>`."""
    declared: dict[str, dict[str, Any]] = tomllib.loads(_read("entities.toml"))
    return {name: _entity(name, declared) for name in sorted(declared)}


def with_components(schema: Schema) -> Schema:
    """The schema by itself: with the entities that it refers to, and those that they do."""
    found: dict[str, Schema] = {}
    left = list(notation.names_in(schema))
    while left:
        name = left.pop()
        if name not in found:
            found[name] = components()[name]
            left += notation.names_in(found[name])
    return schema | {"components": {"schemas": found}}


def error_schema() -> Schema:
    """What every answer is that is no success."""
    return notation.schema("MessageError | ParameterError")


def _entity(name: str, declared: dict[str, dict[str, Any]]) -> Schema:
    first = declared[name].get("+")
    if first is None:
        return notation.of_keys(declared[name])
    base = notation.of_class(first) if first.startswith("<") else _entity(first, declared)
    return notation.of_keys(declared[name], base)


@functools.cache
def _answers() -> dict[str, tuple[Answer, ...]]:
    table: dict[str, str] = tomllib.loads(_read("answers.toml"))
    return {route: tuple(map(_answer, text.split(","))) for route, text in table.items()}


def _answer(text: str) -> Answer:
    status, _, body = text.strip().partition(" ")
    if not 200 <= int(status) <= 499:
        raise ValueError(f"{text}: {status} is no status")
    if body in ("", "text", "bytes"):
        return Answer(status=int(status), form=body or None)  # type: ignore[arg-type]
    return Answer(status=int(status), form="json", schema=notation.schema(body))


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text()
