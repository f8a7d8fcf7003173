"""The API's description: complete, consistent in itself, and made of valid JSON Schema."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest

from api_server.description.document import document
from api_server.description.parameters import path_of
from api_server.web.routes import ResourceAccess, Role
from tests.support.route_table import ROUTES

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
    """`/runners/{id}` and `/runners/{runner_id}` would be."""
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
    for reference in _references(described):
        found: Any = described
        for key in reference.removeprefix("#/").split("/"):
            found = found[key]


def test_schemas_are_valid(described: dict[str, Any]) -> None:
    for name, schema in described["components"]["schemas"].items():
        assert jsonschema_rs.meta.is_valid(schema | {"$schema": _DIALECT}), name
    for _, path, operation in operations(described):
        for one in operation.get("parameters", []):
            assert jsonschema_rs.meta.is_valid(one["schema"] | {"$schema": _DIALECT}), path


def test_clients_may_send_less_and_be_answered_more(described: dict[str, Any]) -> None:
    """Generators demand, or always send, members with a `default`; some refuse what a closed object does not name."""
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
        assert operation.get("x-tier") == (route.feature and route.feature.tier), route
        judged_by_scope = route.access.who not in ("anyone", "job")
        assert operation.get("x-scopes", []) == (list(route.scopes) if judged_by_scope else []), route
        assert (operation["security"] == []) <= (route.access.who == "anyone"), route


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
            numbers = set(re.findall(r"`([a-z_]+)` integer\b(?!/)", told)) - {"id"}  # which may be a path
            assert [name for name in numbers if "integer" not in str(taken[name][1])] == [], number


def _taken(described: dict[str, Any], operation: dict[str, Any]) -> dict[str, tuple[bool, Any]]:
    """By the parameter's name: whether it has to be sent, and its schema."""
    given = operation.get("parameters", [])
    taken = {one["name"].removesuffix("[]"): (one["required"], one["schema"]) for one in given}
    content = operation.get("requestBody", {}).get("content", {})
    for one in content.values():
        schema = described["components"]["schemas"][one["schema"]["$ref"].rpartition("/")[2]]
        taken |= {name: (name in schema.get("required", ()), it) for name, it in schema["properties"].items()}
    return taken


ENDPOINTS = Path(__file__).parents[3] / "docs/service-api.md"
#: What stands between backticks and is no parameter: values, members, and the job's token, which is a credential.
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
    """What requests made of the description have found."""
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
