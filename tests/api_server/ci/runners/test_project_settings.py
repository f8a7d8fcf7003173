"""What a project says of all its jobs: how long they may run, and how runners fetch its repository."""

from typing import Any

import pytest

from tests.support.ci import ci_project
from tests.support.forge import Forge
from tests.support.runner import a_runner

FILE = """
short: {script: make, timeout: 20 minutes}
plain: {script: make}
deep: {script: make, variables: {GIT_DEPTH: '3'}}
"""


def _told(payload: dict[str, Any]) -> dict[str, tuple[int, int, bool]]:
    depth, fetches = payload["git_info"]["depth"], payload["allow_git_fetch"]
    return {payload["job_info"]["name"]: (payload["runner_info"]["timeout"], depth, fetches)}


async def test_jobs_have_what_their_project_says_unless_they_say_otherwise(forge: Forge) -> None:
    project = await ci_project(forge)
    runner = await a_runner(forge, project_id=project.id)
    before = await project.pipeline(FILE)
    settings = {"build_timeout": 7200, "ci_default_git_depth": 0, "build_git_strategy": "clone"}
    changed = await forge.root.put(project.url, settings)
    assert {name: changed.body[name] for name in settings} == settings
    told: dict[str, Any] = {}
    for _ in range(3):
        told |= _told((await runner.job()).payload)
    # How it is fetched counts as it is when the job begins, and the time as it was when the job was made.
    assert told == {"short": (1200, 0, False), "plain": (3600, 0, False), "deep": (3600, 3, False)}
    (plain,) = [job for name, job in (await project.jobs(before)).items() if name == "plain"]
    await forge.root.post(f"{project.url}/jobs/{plain['id']}/cancel")
    await forge.root.post(f"{project.url}/jobs/{plain['id']}/retry")
    assert _told((await runner.job()).payload) == {"plain": (7200, 0, False)}


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        ({"build_timeout": 599}, {"build_timeout": ["needs to be between 10 minutes and 1 month"]}),
        ({"build_timeout": 2_629_746}, {"build_timeout": ["needs to be between 10 minutes and 1 month"]}),
        (
            {"ci_default_git_depth": 1001},
            {"ci_cd_settings.default_git_depth": ["must be less than or equal to 1000"]},
        ),
        (
            {"ci_default_git_depth": -1},
            {"ci_cd_settings.default_git_depth": ["must be greater than or equal to 0"]},
        ),
    ],
)
async def test_numbers_have_bounds(forge: Forge, sent: dict[str, int], problem: dict[str, Any]) -> None:
    project = await forge.project()
    for answer in (
        await forge.root.put(f"/projects/{project['id']}", sent),
        await forge.root.post("/projects", {"name": "bounds"} | sent),
    ):
        assert (answer.status, answer.body) == (400, {"message": problem})
