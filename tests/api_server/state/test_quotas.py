"""Everything that is read as a whole has a limit: variables, agents, status checks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.forge import Forge, SharedForges, new_name
from tests.support.merge_requests import commit

LIMITS = {
    "variables_limit": 3, "instance_variables_limit": 3, "agents_limit": 3, "status_checks_limit": 3,
    "commit_statuses_limit": 3, "triggers_limit": 3, "schedules_limit": 3,
}  # fmt: skip


@pytest.fixture
async def limited(shared_forge: SharedForges) -> AsyncIterator[Forge]:
    forge = await shared_forge(allow_local_requests=True)
    with forge.changed_settings(**LIMITS):
        yield forge


def new_variable() -> dict[str, str]:
    return {"key": new_name("KEY").replace("-", "_"), "value": "x"}


def new_agent() -> dict[str, str]:
    return {"name": new_name("agent")}


def new_check() -> dict[str, str]:
    return {"name": new_name("check"), "external_url": f"http://127.0.0.1/{new_name('hook')}"}


@pytest.mark.parametrize(
    ("path", "new", "status", "message"),
    [
        (
            "/projects/{project}/variables",
            new_variable,
            400,
            {"base": ["Maximum number of project ci variables (3) exceeded"]},
        ),
        (
            "/groups/{group}/variables",
            new_variable,
            400,
            {"base": ["Maximum number of group ci variables (3) exceeded"]},
        ),
        (
            "/projects/{project}/cluster_agents",
            new_agent,
            400,
            "400 Bad request - Maximum number of agents (3) exceeded",
        ),
        (
            "/projects/{project}/external_status_checks",
            new_check,
            422,
            ["Maximum number of external status checks (3) exceeded"],
        ),
        (
            "/projects/{project}/triggers",
            lambda: {"description": "x"},
            400,
            {"base": ["Maximum number of pipeline triggers (3) exceeded"]},
        ),
        (
            "/projects/{project}/pipeline_schedules",
            lambda: {"description": "x", "ref": "main", "cron": "* * * * *"},
            400,
            {"base": ["Maximum number of pipeline schedules (3) exceeded"]},
        ),
    ],
)
async def test_there_are_so_many_of_each_and_no_more(
    limited: Forge, path: str, new: Callable[[], dict[str, str]], status: int, message: Any
) -> None:
    """This holds for parallel requests too; entities of other owners do not count."""
    for _ in range(2):
        things = path.format(project=(await limited.project())["id"], group=(await limited.group())["id"])
        answers = await asyncio.gather(*(limited.root.post(things, new()) for _ in range(6)))
        assert sorted(answer.status for answer in answers) == [201] * 3 + [status] * 3
        refused = next(answer for answer in answers if answer.status == status)
        assert refused.body == {"message": message}
        assert len((await limited.root.get(things)).body) == 3


async def test_the_instance_has_so_many_variables(limited: Forge) -> None:
    things = "/admin/ci/variables"
    answers = await asyncio.gather(*(limited.root.post(things, new_variable()) for _ in range(5)))
    assert sorted(answer.status for answer in answers) == [201] * 3 + [400] * 2
    refused = next(answer for answer in answers if answer.status == 400)
    told = "Maximum number of ci instance level variables (3) exceeded"
    assert refused.body == {"message": {"base": [told]}}


async def test_a_pipeline_takes_so_many_statuses(limited: Forge) -> None:
    """Replaced statuses count too; existing statuses can still be changed."""
    project = await limited.project()
    sha = await commit(limited.root, project, "main")
    statuses = f"/projects/{project['id']}/statuses/{sha}"
    last = [{"state": "failed"}, {"state": "failed"}, {"state": "pending", "name": "last"}]
    assert [(await limited.root.post(statuses, one)).status for one in last] == [201] * 3
    refused = await limited.root.post(statuses, {"state": "success", "name": "further"})
    assert (refused.status, refused.body) == (422, {"message": "The number of jobs has exceeded the limit"})
    assert (await limited.root.post(statuses, {"state": "success", "name": "last"})).status == 201


async def test_zero_is_no_limit(forge: Forge, tmp_path: Path) -> None:
    with forge.changed_settings(variables_limit=0):
        things = f"/projects/{(await forge.project())['id']}/variables"
        assert [(await forge.root.post(things, new_variable())).status for _ in range(5)] == [201] * 5
