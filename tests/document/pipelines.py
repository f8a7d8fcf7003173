"""A project with a pipeline that has jobs of every kind, and a runner that has taken some of them."""

from typing import Any

import attrs

from tests.support.ci import CiProject, ci_project
from tests.support.forge import Answer, Forge, Person
from tests.support.runner import Runner, RunningJob, a_runner
from tests.support.waiting import until
from tests.support.zips import archive

CONFIG = """
finished: {script: 'true', coverage: '/x/', artifacts: {paths: [out.txt], reports: {junit: junit.xml}}}
failed: {script: 'false'}
running: {script: sleep}
manual: {script: 'true', when: manual}
downstream: {trigger: {include: child.yml}}
"""
CHILD = "child: {script: 'true'}\n"


@attrs.frozen
class Ci:
    """The project. `jobs` are those of `pipeline` by their names, `taken` are those that the runner has taken, and
    `running` still runs."""

    project: CiProject
    runner: Runner
    pipeline: dict[str, Any]
    jobs: dict[str, int]
    taken: dict[str, RunningJob]

    @property
    def forge(self) -> Forge:
        return self.project.forge

    @property
    def developer(self) -> Person:
        return self.project.developer

    @property
    def url(self) -> str:
        return self.project.url

    @property
    def path(self) -> str:
        """The path of the project with its name."""
        return f"/projects/{self.project.path.replace('/', '%2F')}"

    async def get(self, rest: str, **options: Any) -> Answer:
        answer = await self.project.api.get(f"{self.url}{rest}", **options)
        assert answer.status == 200, answer
        return answer

    async def show(self, name: str) -> dict[str, Any]:
        return dict((await self.get(f"/jobs/{self.jobs[name]}")).body)

    async def another(self, status: str, **options: Any) -> str:
        """Return the path of a job in this status, in a pipeline of its own."""
        job = await self.project.job_in(status, branch="other", **options)
        return f"{self.url}/jobs/{job['id']}"


async def new_ci(forge: Forge) -> Ci:
    project = await ci_project(forge)
    await project.commit(CHILD, path="child.yml")
    runner = await a_runner(forge, project_id=project.id)
    pipeline = await project.pipeline(CONFIG)
    taken = [await runner.job() for _ in range(3)]
    by_name = {job.payload["job_info"]["name"]: job for job in taken}
    await by_name["finished"].log(b"hello\n")
    uploads = (
        {"artifact_type": "archive", "artifact_format": "zip"},
        {"artifact_type": "metadata", "artifact_format": "gzip"},
        {"artifact_type": "junit", "artifact_format": "gzip"},
    )
    for fields in uploads:
        assert (await by_name["finished"].upload(archive(**{"out.txt": b"hello\n"}), **fields)).status == 201
    await by_name["finished"].finish()
    await by_name["failed"].finish("failed", failure_reason="script_failure")
    jobs = {name: job["id"] for name, job in (await project.jobs(pipeline)).items()}

    async def downstream() -> int | None:
        (bridge,) = (await project.bridges(pipeline)).values()
        return bridge["id"] if bridge["downstream_pipeline"] else None

    jobs["downstream"] = await until(downstream)
    return Ci(project, runner, pipeline, jobs, by_name)
