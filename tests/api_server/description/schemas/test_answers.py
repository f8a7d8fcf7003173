"""The table of what routes answer, and the entities that it names."""

import re
from pathlib import Path

import jsonschema_rs
import pytest

from api_server.description import answers as described
from api_server.description.answers import (
    _answer,
    _answers,
    answers,
    components,
    error_schema,
    response_schema,
    with_components,
)
from tests.support.route_table import ROUTES, name_of

API_SERVER = Path(__file__).parents[4] / "api_server"
SCHEMAS = [answer.schema for route in ROUTES for answer in answers(route) if answer.schema is not None]


def test_every_route_has_its_answers_and_nothing_else_has() -> None:
    assert set(_answers()) == {name_of(route) for route in ROUTES}


def test_every_schema_is_one_and_refers_to_what_there_is() -> None:
    for schema in [*SCHEMAS, error_schema()]:
        jsonschema_rs.Draft202012Validator(with_components(schema))


def test_every_entity_is_answered() -> None:
    whole = [*SCHEMAS, error_schema()]
    used = {name for schema in whole for name in with_components(schema)["components"]["schemas"]}
    assert set(components()) - used == set()


def test_of_several_entities_the_larger_comes_first() -> None:
    """Clients take the first that fits, which the smaller one does wherever a larger one does."""
    for schema in SCHEMAS:
        arms = [arm["$ref"].rpartition("/")[2] for arm in schema.get("items", schema).get("anyOf", [])]
        required = [set(components()[name]["required"]) for name in arms]
        for at, keys in enumerate(required):
            assert not [
                name for name, more in zip(arms[at + 1 :], required[at + 1 :], strict=True) if keys < more
            ]


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("date-time", {"type": "string", "format": "date-time"}),
        ("boolean | null", {"type": ["boolean", "null"]}),
        ("uri | null", {"type": ["string", "null"], "format": "uri"}),
        ("[Job | null]", {"type": "array", "items": {"anyOf": [described.reference("Job"), {"type": "null"}]}}),
        ("{[string]}", {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}}),
        (
            "<api_server.releases.changes:LinkType> | null",
            {"type": ["string", "null"], "enum": ["other", "runbook", "image", "package", None]},
        ),
        ("string | any", {}),
        ("'one' | 'two' | null", {"type": ["string", "null"], "enum": ["one", "two", None]}),
    ],
)  # fmt: skip
def test_a_type_is_written_short(text: str, schema: described.Schema) -> None:
    assert described.schema_of_text(text) == schema


@pytest.mark.parametrize("text", ["", "[string", "strnig", "Job Bridge", "[string}", "%"])
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"type|closed|follow"):
        described.schema_of_text(text)


@pytest.mark.parametrize("text", ["Job", "2000 Job", "200Job", "200 Job Bridge", "200 text bytes"])
def test_what_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|status|follow|no type"):
        _answer(text)


def test_an_entity_is_its_keys_and_those_of_another() -> None:
    base = described.schema_of_keys({"id": "integer", "name": "string"})
    inner = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}
    closed, free = inner | {"additionalProperties": False}, inner | {"additionalProperties": {"type": "null"}}
    assert described.schema_of_keys(
        {
            "name?": "null",
            "one": {"a": "number"},
            "many[]": {"a": "number"},
            "none | null?": {"a": "number", "*": "null"},
        },
        base,
    ) == {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "name": {"type": "null"},
            "one": closed,
            "many": {"type": "array", "items": closed},
            "none": free | {"type": ["object", "null"]},
        },
        "required": ["id", "one", "many"],
        "additionalProperties": False,
    }
    with pytest.raises(ValueError, match="no key"):
        described.schema_of_keys({"a key": "string"})


def test_the_usual_answer_is_the_one_that_is_asked_for() -> None:
    by_name = {name_of(route): route for route in ROUTES}
    assert response_schema(by_name["GET /projects/{id}/jobs/{job_id}"]) == described.reference("Job")
    assert response_schema(by_name["DELETE /users/{id}"]) is None
    assert response_schema(by_name["GET /projects/{id}/jobs/{job_id}/trace"]) is None


def test_the_server_starts_without_it() -> None:
    """Only the route's handlers are imported with the server, and they import the rest when they are asked."""
    of_description = re.compile(r"^(from|import) api_server\.description\.(?!handlers\b)", re.MULTILINE)
    others = [path for path in API_SERVER.rglob("*.py") if API_SERVER / "description" not in path.parents]
    starting = [API_SERVER / "description/handlers.py", *others]
    assert [path for path in starting if of_description.search(path.read_text())] == []
