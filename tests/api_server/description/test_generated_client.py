"""Programs of others read the description: a validator, and a generator of clients."""

import asyncio
import json
from pathlib import Path

import orjson
import pytest

from api_server.description.document import document
from tests.support.ci import ci_project
from tests.support.forge import ROOT_TOKEN, Forge
from tests.support.outside import INSTALLS, generated_client, run_outside
from tests.support.route_table import ROUTES

PROGRAM = Path(__file__).with_name("client_program.py")

pytestmark = INSTALLS


@pytest.fixture(scope="module")
def description() -> bytes:
    return orjson.dumps(document(ROUTES))


#: The specification's schema. The validator's own walk takes half a minute, and test_document.py checks the same.
VALIDATE = """
import json, sys
import jsonschema_rs
from openapi_spec_validator.schemas import get_schema_content_v31

description = json.load(open(sys.argv[1]))
for error in jsonschema_rs.validator_for(get_schema_content_v31()).iter_errors(description):
    print(error.instance_path, error.message[:200])
"""


@pytest.mark.parametrize(("openapi", "problems"), [("3.1.0", 0), ("2.0", 1)])
def test_it_is_valid(description: bytes, tmp_path: Path, openapi: str, problems: int) -> None:
    described = orjson.loads(description) | {"openapi": openapi}
    (tmp_path / "openapi.json").write_bytes(orjson.dumps(described))
    done = run_outside("-c", VALIDATE, str(tmp_path / "openapi.json"))
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", problems), done.stdout


def test_a_client_is_generated_without_a_warning(description: bytes) -> None:
    folder, said = generated_client(description)
    assert said.strip() == "Generating generated"
    modules = {path.stem for path in (folder / "generated" / "api").glob("*/*.py")} - {"__init__"}
    names = {
        operation["operationId"]
        for item in orjson.loads(description)["paths"].values()
        for operation in item.values()
    }
    assert modules == names


async def test_a_generated_client_lists_creates_and_deletes(forge: Forge, description: bytes) -> None:
    folder, _ = await asyncio.to_thread(generated_client, description)
    project = await ci_project(forge)
    await project.job_in("failed")
    done = await asyncio.to_thread(
        run_outside,
        str(PROGRAM),
        f"{forge.base}/api/v4",
        ROOT_TOKEN,
        str(project.id),
        PYTHONPATH=str(folder),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "projects": ["By a generated client", True, 202, 404, "404 Project Not Found"],
        "jobs": ["failed"],
        "checks": [["Licences"], 422, 204],
        "mirrors": [["https://*****:*****@mirror.example/app.git"], 400, 204],
        "invitations": ["success", ["new@people.example"], 204, []],
    }
