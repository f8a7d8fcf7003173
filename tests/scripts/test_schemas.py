"""entities.json, and how expressions of SQL become JSON Schemas."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from api_server.state.statements import Query
from scripts.schemas import catalog
from scripts.schemas.__main__ import PLACE, written
from scripts.schemas.entities import OF_FUNCTIONS, OF_PARTS, part_of
from scripts.schemas.evaluator import Evaluator

API_SERVER = Path(__file__).parents[2] / "api_server"


@pytest.fixture(scope="module")
def cursor(new_database: Callable[[], str]) -> Iterator[Any]:
    with contextlib.closing(psycopg2.connect(new_database())) as connection, connection.cursor() as cursor:
        yield cursor


@pytest.fixture(scope="module")
def evaluator(cursor: Any) -> Evaluator:
    return Evaluator(catalog.read(cursor), OF_FUNCTIONS)


def test_the_file_is_what_postgresql_says(cursor: Any) -> None:
    assert PLACE.read_bytes() == written(cursor), "python -m scripts.schemas"


def test_every_entity_of_the_api_is_in_it() -> None:
    folders = {
        str(path.parent.relative_to(API_SERVER)).replace("/", ".")
        for path in API_SERVER.rglob("entities.sql")
        if "pages" not in path.parts
    }
    assert set(OF_PARTS) == folders
    for folder, parts in OF_PARTS.items():
        names = {name for name in read_sql_of(folder) if "\nSELECT " in f"\n{part_of(folder, name)}"}
        assert names == set(parts), folder


def read_sql_of(folder: str) -> list[str]:
    text = (API_SERVER / folder.replace(".", "/") / "entities.sql").read_text()
    return [part.split("\n", 1)[0].strip() for part in text.split("-- name: ")[1:]]


@pytest.mark.parametrize(
    ("expression", "schema"),
    [
        ("jobs.id", {"type": "integer"}),
        ("jobs.coverage", {"type": ["number", "null"]}),
        ("jobs.kind", {"type": "string", "enum": ["build", "bridge", "external"]}),
        ("jobs.tag_list", {"type": "array", "items": {"type": "string"}}),
        ("iso8601(jobs.started_at)", {"type": ["string", "null"], "format": "date-time"}),
        ("coalesce(jobs.started_at > %(now)s, false)", {"type": "boolean"}),
        # of a table that is joined from outside, everything may be missing
        ("users.id", {"type": ["integer", "null"]}),
        ("coalesce(users.id, jobs.id)", {"type": "integer"}),
        ("CASE WHEN users.id IS NOT NULL THEN 1 END", {"type": ["integer", "null"]}),
        # a question is answered where the answer is known
        ("CASE WHEN jobs.id IS NOT NULL THEN 1 END", {"type": "integer"}),
        ("CASE jobs.kind WHEN 'build' THEN 'a' ELSE 'b' END", {"type": "string", "enum": ["a", "b"]}),
        # the text of what is only known to be JSON
        ("(left(jobs.plan::text, -1) || ',\"b\":1}')::json", {}),
        ("(SELECT count(*) FROM jobs others)", {"type": "integer"}),
        ("(SELECT max(others.id) FROM jobs others)", {"type": ["integer", "null"]}),
        ("(SELECT others.id FROM jobs others LIMIT 1)", {"type": ["integer", "null"]}),
        (
            "(SELECT coalesce(json_agg(others.id), '[]') FROM jobs others)",
            {"type": "array", "items": {"type": "integer"}},
        ),
        (
            "user_basic(users)",
            {"anyOf": [{"$ref": "#/components/schemas/UserBasic"}, {"type": "null"}]},
        ),
    ],
)
def test_an_expression_is_what_its_columns_and_functions_are(
    evaluator: Evaluator, expression: str, schema: dict[str, Any]
) -> None:
    assert described(evaluator, f"json_build_object('key', {expression})")["properties"]["key"] == schema


@pytest.mark.parametrize(
    ("expression", "required", "optional"),
    [
        ("(left(json_build_object('a', 1)::text, -1) || ',\"b\":' || jobs.id || '}')::json", {"a", "b"}, set()),
        ("json_joined(json_build_object('a', 1), json_build_object('b', 1))", {"a", "b"}, set()),
        (
            "CASE WHEN jobs.retried THEN json_build_object('a', 1) ELSE json_build_object('a', 1, 'b', 2) END",
            {"a"},
            {"b"},
        ),
        ("('{\"a\": 1' || CASE WHEN jobs.id > 1 THEN ',\"b\":2' ELSE '' END || '}')::json", {"a"}, {"b"}),
    ],
)  # fmt: skip
def test_an_object_that_is_put_together_as_text_has_all_of_its_keys(
    evaluator: Evaluator, expression: str, required: set[str], optional: set[str]
) -> None:
    schema = described(evaluator, expression)
    assert set(schema["required"]) == required
    assert set(schema["properties"]) == required | optional
    assert schema["additionalProperties"] is False


def described(evaluator: Evaluator, entity: str) -> dict[str, Any]:
    return evaluator.entity(
        Query(
            f"WITH entities AS (SELECT {entity} AS entity FROM jobs LEFT JOIN users ON users.id = jobs.user_id) "
            "SELECT entity::text FROM entities"
        )
    )
