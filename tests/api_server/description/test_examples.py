"""The examples of the description: of operations that exist, as their schemas say, and nobody's secrets."""

import re
from typing import Any

import jsonschema_rs
import pytest

from api_server.description.document import document, recorded_examples
from tests.support.route_table import ROUTES

RECORDED = recorded_examples()


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return document(ROUTES)


@pytest.fixture(scope="module")
def operations(described: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = [operation for item in described["paths"].values() for operation in item.values()]
    return {operation["operationId"]: operation for operation in found}


def test_each_endpoint_of_the_document_has_one(operations: dict[str, dict[str, Any]]) -> None:
    assert RECORDED.keys() <= operations.keys()
    assert {operations[name].get("x-endpoint") for name in RECORDED} >= set(range(1, 35))


@pytest.mark.parametrize("name", RECORDED)
def test_it_is_what_the_schemas_say(
    described: dict[str, Any], operations: dict[str, dict[str, Any]], name: str
) -> None:
    example, operation = RECORDED[name], operations[name]
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
