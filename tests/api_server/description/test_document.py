"""The API's description is complete, consistent and valid, has fitting examples, and is served."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest

from api_server.description.answers import (
    Schema,
    _answer,
    answers,
    components,
    error_schema,
    reference,
    response_schema,
    schema_of_keys,
    schema_of_text,
    with_components,
)
from api_server.description.document import document, recorded_examples
from api_server.description.parameters import path_of
from api_server.web.routes import ResourceAccess, Role
from tests.support.forge import Forge
from tests.support.route_table import ROUTES, name_of

METHODS = ("get", "post", "put", "patch", "delete")


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return document(ROUTES)


def operations(described: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in described["paths"].items():
        for method in item:
            yield method, path, item[method]


def test_every_route_is_described_and_nothing_else(described: dict[str, Any]) -> None:
    known = Counter((route.method.lower(), path_of(route)) for route in ROUTES)
    assert Counter((method, path) for method, path, _ in operations(described)) == known
    assert set(known.values()) == {1}


def test_no_two_paths_are_one_to_a_client(described: dict[str, Any]) -> None:
    """`/runners/{id}` and `/runners/{runner_id}` would be the same path."""
    assert not _twice(re.sub(r"{\w+}", "{}", path) for path in described["paths"])


def test_operations_have_names_of_their_own(described: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(described)]
    assert not _twice(names)
    assert not [name for name in names if not re.fullmatch("[a-z]+(_[a-z]+)*", name)]


def test_each_parameter_of_a_path_is_declared(described: dict[str, Any]) -> None:
    for _, path, operation in operations(described):
        declared = [one["name"] for one in operation.get("parameters", []) if one["in"] == "path"]
        assert sorted(declared) == sorted(re.findall(r"{(\w+)}", path)), path
        assert not _twice((one["in"], one["name"]) for one in operation.get("parameters", [])), path


def test_each_operation_belongs_to_one_resource_that_is_told_about(described: dict[str, Any]) -> None:
    tags = [tag["name"] for tag in described["tags"]]
    assert {tag for _, _, operation in operations(described) for tag in operation["tags"]} == set(tags)
    assert all(len(operation["tags"]) == 1 for _, _, operation in operations(described))


def test_references_lead_somewhere(described: dict[str, Any]) -> None:
    for each in _references(described):
        found: Any = described
        for key in each.removeprefix("#/").split("/"):
            found = found[key]


def test_schemas_are_valid(described: dict[str, Any]) -> None:
    for name, schema in described["components"]["schemas"].items():
        assert jsonschema_rs.meta.is_valid(schema | {"$schema": _DIALECT}), name
    for _, path, operation in operations(described):
        for one in operation.get("parameters", []):
            assert jsonschema_rs.meta.is_valid(one["schema"] | {"$schema": _DIALECT}), path


def test_clients_may_send_less_and_be_answered_more(described: dict[str, Any]) -> None:
    """Generated clients demand, or always send, members with a `default`; some refuse unnamed members of a closed
    object."""
    for name, schema in described["components"]["schemas"].items():
        text = orjson.dumps(schema).decode()
        assert '"additionalProperties":false' not in text, name
        assert not name.endswith("Body") or not re.search(r'"default":', text), name
    schema = described["components"]["schemas"]["CreateProjectRepositoryFileBody"]
    assert schema["properties"]["encoding"]["description"] == "Default: `text`."


def test_roles_tiers_and_scopes_are_those_of_the_routes(described: dict[str, Any]) -> None:
    for route in ROUTES:
        operation = described["paths"][path_of(route)][route.method.lower()]
        role = route.access.role if isinstance(route.access, ResourceAccess) else Role.NO_ACCESS
        assert operation.get("x-role", "No Access") == role.title, route
        assert operation.get("x-tier") == (route.license and route.license.tier), route
        judged_by_scope = route.access.kind not in ("anyone", "job")
        assert operation.get("x-scopes", []) == (list(route.scopes) if judged_by_scope else []), route
        assert (operation["security"] == []) <= (route.access.kind == "anyone"), route


def test_the_34_endpoints_take_what_their_document_says(described: dict[str, Any]) -> None:
    said = re.findall(r"^\| (\d+) \| ([A-Z]+) `([^`]+)` \| ([^|]+) \|", ENDPOINTS.read_text(), re.MULTILINE)
    assert len(said) == 34
    by_number: dict[int, list[dict[str, Any]]] = {}
    for method, path, operation in operations(described):
        if number := operation.get("x-endpoint"):
            by_number.setdefault(number, []).append(operation | {"asked": (method.upper(), path)})
    for number, method, path, told in said:
        ends = re.sub(r":\w+", "{}", path)
        for operation in by_number[int(number)]:
            asked, at = operation["asked"]
            assert asked == method
            assert re.sub(r"{\w+}", "{}", at).endswith(ends)
            taken = _taken(described, operation)
            wanted = set(re.findall(r"`([a-z_]+)`", told)) - _VALUES
            assert wanted <= taken.keys(), (number, wanted - taken.keys())
            demanded = re.findall(r"`([a-z_]+)` (?:string|integer) required(?! if)", told)
            assert [name for name in demanded if not taken[name][0]] == [], number
            numbers = set(re.findall(r"`([a-z_]+)` integer\b(?!/)", told)) - {"id"}  # the id may be a path
            assert [name for name in numbers if "integer" not in str(taken[name][1])] == [], number


def _taken(described: dict[str, Any], operation: dict[str, Any]) -> dict[str, tuple[bool, Any]]:
    """Return, by the parameter's name, whether it has to be sent, and its schema."""
    given = operation.get("parameters", [])
    taken = {one["name"].removesuffix("[]"): (one["required"], one["schema"]) for one in given}
    content = operation.get("requestBody", {}).get("content", {})
    for one in content.values():
        schema = described["components"]["schemas"][one["schema"]["$ref"].rpartition("/")[2]]
        taken |= {name: (name in schema.get("required", ()), it) for name, it in schema["properties"].items()}
    return taken


ENDPOINTS = Path(__file__).parents[3] / "docs/service-api.md"
#: Words between backticks that are not parameters: values, members, and the job's token, which is a credential.
_VALUES = {"pending", "passed", "failed", "ssh_public_key", "password", "key", "value", "job_token"}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from _references(one)


def _twice(names: Any) -> list[Any]:
    return [name for name, times in Counter(names).items() if times > 1]


def test_a_service_below_a_path_is_found_there() -> None:
    assert document([], "/forgelet")["servers"] == [{"url": "/forgelet/api/v4"}]


def test_what_is_refused_is_not_described_as_taken(described: dict[str, Any]) -> None:
    """Requests generated from the description have found these."""
    tokens = described["components"]["schemas"]["CreateProjectAccessTokenBody"]["properties"]
    scopes, commas = tokens["scopes"]["anyOf"]
    assert (scopes["minItems"], commas["minLength"]) == (1, 1)
    assert re.fullmatch(commas["pattern"], "api,read_api")
    assert not re.fullmatch(commas["pattern"], "api,everything")
    runner = described["components"]["schemas"]["UpdateRunnerBody"]["properties"]
    assert runner["maximum_timeout"]["maximum"] == 2**31 - 1
    assert _in_query(described, "/projects/{id}/merge_requests", "assignee_username[]")["maxItems"] == 1
    somebody = _in_query(described, "/projects/{id}/merge_requests", "reviewer_id")["pattern"]
    assert re.fullmatch(somebody, "Any")
    assert not re.fullmatch(somebody, "anybody")
    assert _in_query(described, "/projects", "sort")["enum"] == ["asc", "desc"]
    assert "created_asc" in _in_query(described, "/audit_events", "sort")["enum"]


def _in_query(described: dict[str, Any], path: str, name: str) -> Any:
    parameters = described["paths"][path]["get"]["parameters"]
    return next(one["schema"] for one in parameters if one["name"] == name)


RECORDED = recorded_examples()


@pytest.fixture(scope="module")
def operations_by_id(described: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = [operation for item in described["paths"].values() for operation in item.values()]
    return {operation["operationId"]: operation for operation in found}


def test_each_endpoint_of_the_document_has_one(operations_by_id: dict[str, dict[str, Any]]) -> None:
    assert RECORDED.keys() <= operations_by_id.keys()
    assert {operations_by_id[name].get("x-endpoint") for name in RECORDED} >= set(range(1, 35))


@pytest.mark.parametrize("name", RECORDED)
def test_it_is_what_the_schemas_say(
    described: dict[str, Any], operations_by_id: dict[str, dict[str, Any]], name: str
) -> None:
    example, operation = RECORDED[name], operations_by_id[name]
    answered = operation["responses"][str(example["status"])]
    assert bool(answered.get("content")) == (example["response"] is not None)
    for about, value in ((answered, example["response"]), (operation.get("requestBody"), example["request"])):
        if value is None:
            continue
        for content in about["content"].values():
            assert content["examples"]["recorded"]["value"] == value
            whole = content["schema"] | {"components": described["components"]}
            jsonschema_rs.validator_for(whole, validate_formats=True).validate(value)


def test_nothing_in_them_is_secret_or_somebodys() -> None:
    text = str(RECORDED)
    assert set(re.findall(r"\b(?:flpat|fljob|flso|flptt|glrt)-([\w-]*)", text)) == {"0123456789abcdefghij"}
    assert not re.search(r"127\.0\.0\.1|localhost|(?<!example\.org)/(?:root|home|tmp)\b", text)
    hosts = set(re.findall(r"(?:https?://|ssh://git@|@)(?:[^\s/'\"@]*@)?([\w.-]+)", text))
    assert not [host for host in hosts if not re.search(r"(^|\.)example(\.org)?$", host)]


PATH = "/openapi.json"


async def test_everybody_may_read_it(forge: Forge) -> None:
    answer = await forge.anonymous.get(PATH, expect=200)
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.body["openapi"] == "3.1.0"
    assert answer.body["paths"]["/openapi.json"]["get"]["security"] == []


async def test_what_a_client_has_is_not_sent_again(forge: Forge) -> None:
    first = await forge.anonymous.get(PATH)
    again = await forge.anonymous.get(PATH, headers={"If-None-Match": first.headers["ETag"]})
    assert again.status == 304
    assert "Accept-Encoding" in first.headers["Vary"]


async def test_it_is_the_same_for_those_who_cannot_unpack_it(forge: Forge) -> None:
    packed = await forge.anonymous.get(PATH, headers={"Accept-Encoding": "gzip"})
    plain = await forge.anonymous.get(PATH, headers={"Accept-Encoding": "identity"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert packed.body == plain.body


API_SERVER = Path(__file__).parents[3] / "api_server"
SCHEMAS = [answer.schema for route in ROUTES for answer in answers(route) if answer.schema is not None]


def test_every_schema_is_one_and_refers_to_what_there_is() -> None:
    for schema in [*SCHEMAS, error_schema()]:
        jsonschema_rs.Draft202012Validator(with_components(schema))


def test_every_entity_is_answered() -> None:
    whole = [*SCHEMAS, error_schema()]
    used = {name for schema in whole for name in with_components(schema)["components"]["schemas"]}
    assert set(components()) - used == set()


def test_of_several_entities_the_larger_comes_first() -> None:
    """Clients take the first one that fits, and the smaller one fits wherever a larger one does."""
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
        ("[Job | null]", {"type": "array", "items": {"anyOf": [reference("Job"), {"type": "null"}]}}),
        ("{[string]}", {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}}),
        (
            "<api_server.releases.changes:LinkType> | null",
            {"type": ["string", "null"], "enum": ["other", "runbook", "image", "package", None]},
        ),
        ("string | any", {}),
        ("'one' | 'two' | null", {"type": ["string", "null"], "enum": ["one", "two", None]}),
    ],
)  # fmt: skip
def test_a_type_is_written_short(text: str, schema: Schema) -> None:
    assert schema_of_text(text) == schema


@pytest.mark.parametrize("text", ["", "[string", "strnig", "Job Bridge", "[string}", "%"])
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"type|closed|follow"):
        schema_of_text(text)


@pytest.mark.parametrize("text", ["Job", "2000 Job", "200Job", "200 Job Bridge", "200 text bytes"])
def test_what_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|status|follow|no type"):
        _answer(text)


def test_an_entity_is_its_keys_and_those_of_another() -> None:
    base = schema_of_keys({"id": "integer", "name": "string"})
    inner = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}
    closed, free = inner | {"additionalProperties": False}, inner | {"additionalProperties": {"type": "null"}}
    assert schema_of_keys(
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
    with pytest.raises(ValueError, match="not a key"):
        schema_of_keys({"a key": "string"})


def test_the_usual_answer_is_the_one_that_is_asked_for() -> None:
    by_name = {name_of(route): route for route in ROUTES}
    assert response_schema(by_name["GET /projects/{id}/jobs/{job_id}"]) == reference("Job")
    assert response_schema(by_name["DELETE /users/{id}"]) is None
    assert response_schema(by_name["GET /projects/{id}/jobs/{job_id}/trace"]) is None


def test_the_server_starts_without_it() -> None:
    """The server imports only the handlers of the route, which import the rest on the first request."""
    of_description = re.compile(r"^(from|import) api_server\.description\.(?!handlers\b)", re.MULTILINE)
    others = [path for path in API_SERVER.rglob("*.py") if API_SERVER / "description" not in path.parents]
    starting = [API_SERVER / "description/handlers.py", *others]
    assert [path for path in starting if of_description.search(path.read_text())] == []
