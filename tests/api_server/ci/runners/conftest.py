"""A project, its runner, and a job that the runner has taken, with which most tests of runners begin."""

import pytest

from tests.support.ci import CiProject, ci_project
from tests.support.forge import Forge
from tests.support.runner import Runner, RunningJob, a_runner


@pytest.fixture
async def project(forge: Forge) -> CiProject:
    return await ci_project(forge)


@pytest.fixture
async def runner(forge: Forge, project: CiProject) -> Runner:
    return await a_runner(forge, project_id=project.id)


@pytest.fixture
async def job(project: CiProject, runner: Runner) -> RunningJob:
    await project.pipeline()
    return await runner.job()
