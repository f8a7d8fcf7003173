"""`scripts/fuzz/run`: some operations asked with data of their description, which finds nothing; and what is none."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api_server.description.document import document
from scripts.fuzz import leniency
from tests.support.checkout import CHECKOUT
from tests.support.outside import INSTALLS, outside_python
from tests.support.route_table import ROUTES

#: One in so many operations is asked here, by the order of their ids: making data for one takes 50 ms.
_ONE_IN = 8


@INSTALLS
def test_nothing_is_found() -> None:
    paths = document(ROUTES)["paths"]
    names = sorted(operation["operationId"] for item in paths.values() for operation in item.values())
    some = names[::_ONE_IN]
    done = _fuzz("--cases", str(2 * len(some)), *some, FORGELET_OPENAPI_PYTHON=outside_python())
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"cases of {len(some)} operations; 0 errors in the log." in done.stdout


def test_it_needs_the_environment_of_schemathesis() -> None:
    done = _fuzz(FORGELET_OPENAPI_PYTHON="/nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert "scripts/fuzz/run sees to it" in done.stderr


@pytest.mark.parametrize(
    ("status", "answer", "is_found"),
    [
        (400, {"error": "name is invalid"}, True),
        (400, {"message": {"name": ["has already been taken"]}}, False),
        (400, {"error": "name, url are missing, at least one parameter must be provided"}, False),
        (400, {"error": "order_by does not have a valid value"}, False),
        (400, {"error": "order_by does not have a valid value, sort does not have a valid value"}, True),
        (400, {"error": "inputs is not supported by this service"}, False),
        (415, {"error": "The provided content-type is not supported."}, True),
        (422, {"message": "Ref is not specified"}, False),
    ],
)
def test_what_is_refused_for_the_state_of_things_is_no_finding(
    status: int, answer: Any, is_found: bool
) -> None:
    body = json.dumps(answer).encode()
    assert leniency.counts("RejectedPositiveData", None, status, body) is is_found


def test_a_path_that_is_another_operations_too_is_not_undescribed() -> None:
    paths = document(ROUTES)["paths"]
    schema = SimpleNamespace(raw_schema={"paths": paths})
    for path, is_found in (("/runners/all", False), ("/metadata", True)):
        operation = SimpleNamespace(path=path, schema=schema)
        case = SimpleNamespace(formatted_path=path, operation=operation, method="PUT")
        assert leniency.counts("UnsupportedMethodResponse", case, 400, b"{}") is is_found


def test_what_is_taken_beside_what_is_described() -> None:
    described = document(ROUTES)
    leniency.describe(described)
    fields = described["components"]["schemas"]["CreateProjectRemoteMirrorBody"]["properties"]
    assert {"type": "null"} in fields["enabled"]["anyOf"]
    assert {"const": ""} in fields["enabled"]["anyOf"]
    assert fields["url"] == {"anyOf": [fields["url"]["anyOf"][0], {"type": "number"}]}


def _fuzz(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **variables}
    command = [sys.executable, "-P", "-m", "scripts.fuzz", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=Path.home(), timeout=170
    )
