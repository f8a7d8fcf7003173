"""A project with pipelines that contain everything that their pages show."""

from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from api_server.web.routes import Role
from tests.support.browser import Browser, browsing
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Forge, Person
from tests.support.runner import RunningJob, a_runner
from tests.support.zips import archive

CONFIG = """
stages: [build, test, deploy]
variables: {SECRET_WORD: from-the-file}
compile:
  stage: build
  script: make
  tags: [linux]
  artifacts: {paths: [out]}
lint:
  stage: build
  script: lint
  tags: [linux]
  allow_failure: true
unit:
  stage: test
  needs: [compile]
  tags: [linux]
  script: test
child:
  stage: test
  needs: []
  trigger: {include: child.yml}
release:
  stage: deploy
  script: deploy
  when: manual
  tags: [linux]
"""
ONE_JOB = "build:\n  script: echo\n  tags: [linux]\n"
LOG = (
    b"Running on a machine\n"
    b"section_start:1700000000:prepare\r\x1b[0K\x1b[36;1mPreparing\x1b[0;m\n"
    b"\x1b[32mready <script>alert(1)</script>\x1b[0m\n"
    b"section_end:1700000065:prepare\r\x1b[0K"
    b"section_start:1700000065:hidden[collapsed=true]\r\x1b[0KFetching\n"
    b"10%\r50%\r100%\n"
    b"section_end:1700000066:hidden\r\x1b[0K\n"
    b"\x1b[38;2;250;10;10mthe end\x1b[0m\n"
)


@attrs.frozen
class Scene:
    """A pipeline whose job `compile` has succeeded and whose job `lint` has failed."""

    forge: Forge
    project: CiProject
    maintainer: Person
    guest: Person
    pipeline: dict[str, Any]
    jobs: dict[str, dict[str, Any]]

    def page(self, path: str) -> str:
        return f"/{self.project.path}/-/{path}"


async def handed_out(project: CiProject, **values: Any) -> RunningJob:
    """Take the oldest waiting job with a runner of the project; return it."""
    runner = await a_runner(project.forge, project_id=project.id, tag_list=["linux"])
    return await runner.job(**values)


async def running(scene: Scene, branch: str, config: str = ONE_JOB) -> tuple[RunningJob, str]:
    """Return a job that a runner has taken, and the path of its page."""
    wanted = await scene.project.job(config, branch=branch)
    job = await handed_out(scene.project)
    while job.id != wanted["id"]:
        await job.finish()
        job = await handed_out(scene.project)
    return job, scene.page(f"jobs/{job.id}")


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    project = await ci_project(forge)
    maintainer, guest = await forge.user("maintainer"), await forge.user("guest")
    await forge.member("projects", project.id, maintainer, Role.OWNER)
    await forge.member("projects", project.id, guest, Role.GUEST)
    await project.commit("one:\n  script: echo\n  tags: [nobody]\n", path="child.yml")
    pipeline = await project.pipeline(CONFIG)
    job = await handed_out(project)
    await job.log(LOG)
    await job.upload(archive(**{"out/a.txt": b"hello", "out/deep/b.txt": b"", "top.txt": b"t"}))
    await job.finish()
    failing = await handed_out(project)
    await failing.finish("failed", failure_reason="script_failure", exit_code=3)
    return Scene(forge, project, maintainer, guest, pipeline, await project.jobs(pipeline))


@pytest.fixture
async def browser(scene: Scene) -> AsyncIterator[Browser]:
    """The developer's browser."""
    async with browsing(scene.forge, scene.project.developer) as opened:
        yield opened
