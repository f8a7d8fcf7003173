"""Pipelines that the built-in runner brings to their end, by the runners' protocol, on a server for tests whose clock
stands where a test sets it."""

import asyncio
import io
import zipfile
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import gitlab
import pytest

from forgelet.runner.built_in import BuiltInRunner
from forgelet.runner.rules import Rule, Rules
from tests.support.ci import CiProject, ci_project, eventually
from tests.support.clock import MovedClock, forge_with_clock
from tests.support.forge import Forge

RULES = Rules(
    (
        Rule({"name": "flaky *"}, {"result": "failed", "exit_code": 42}),
        Rule({"name": "sleep"}, {"duration": 600.0}),
    )
)


@attrs.frozen
class Scene:
    forge: Forge
    clock: MovedClock
    #: The runner's token, as `up` keeps it.
    kept: dict[str, str]

    async def ended(self, project: CiProject, text: str, **values: Any) -> tuple[str, dict[str, Any]]:
        """The status of a pipeline that is over, and its jobs."""
        pipeline = await project.pipeline(text, **values)
        await self.reaches(project, pipeline, "success", "failed", "canceled", "manual")
        return await project.status(pipeline), await project.jobs(pipeline)

    async def reaches(self, project: CiProject, pipeline: dict[str, Any], *statuses: str) -> None:
        async def there() -> bool:
            return await project.status(pipeline) in statuses

        await eventually(there)


@pytest.fixture(scope="module")
async def scene(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    kept: dict[str, str] = {}
    folder = tmp_path_factory.mktemp("built_in")
    async with forge_with_clock(new_database(), folder, testing=True) as (forge, clock):
        runner = BuiltInRunner(
            forge.base,
            RULES,
            root_token=str(forge.root.token),
            tags=["*"],
            recall=lambda: kept.get("token"),
            remember=lambda token: kept.update(token=token),
        )
        working = runner.working()
        await asyncio.to_thread(working.__enter__)
        yield Scene(forge, clock, kept)
        await asyncio.to_thread(working.__exit__, None, None, None)


@pytest.fixture(scope="module")
async def project(scene: Scene) -> CiProject:
    return await ci_project(scene.forge)


async def test_stages_needs_tags_and_what_may_fail(scene: Scene, project: CiProject) -> None:
    text = """
stages: [build, test, deploy]
build 1/2: {stage: build, script: make, tags: [docker, windows]}
build 2/2: {stage: build, script: make}
flaky test: {stage: test, script: make test, allow_failure: {exit_codes: 42}}
lint: {stage: test, needs: [build 1/2], script: lint}
deploy: {stage: deploy, needs: [lint], script: [./deploy, echo done]}
ask: {stage: deploy, when: manual, script: ask}
"""
    status, jobs = await scene.ended(project, text)
    assert status == "success"
    assert {name: job["status"] for name, job in jobs.items()} == {
        "build 1/2": "success", "build 2/2": "success", "flaky test": "failed", "lint": "success",
        "deploy": "success", "ask": "manual",
    }  # fmt: skip
    log = await project.api.get(f"{project.url}/jobs/{jobs['deploy']['id']}/trace")
    assert log.body == (
        "Played by the built-in runner; no command is executed.\n$ ./deploy\n$ echo done\nJob succeeded\n"
    )
    assert jobs["deploy"]["runner"]["description"] == "Built-in runner"
    log = await project.api.get(f"{project.url}/jobs/{jobs['flaky test']['id']}/trace")
    assert log.body.endswith("ERROR: Job failed: exit code 42\n")
    await project.api.post(f"{project.url}/jobs/{jobs['ask']['id']}/play")

    async def played() -> bool:
        return bool((await project.jobs({"id": jobs["ask"]["pipeline"]["id"]}))["ask"]["status"] == "success")

    await eventually(played)


async def test_variables_say_how_a_job_ends(scene: Scene, project: CiProject) -> None:
    text = """
first: {stage: build, script: a, variables: {FORGELET_RESULT: runner_system_failure}}
second: {stage: build, script: b, allow_failure: true, variables: {FORGELET_LOG: "no more\\n", FORGELET_RESULT: failed}}
third: {stage: build, script: c, allow_failure: true, variables: {FORGELET_DURATION: tomorrow}}
never: {stage: test, script: d}
"""
    status, jobs = await scene.ended(project, text)
    assert status == "failed"
    assert {name: (job["status"], job.get("failure_reason")) for name, job in jobs.items()} == {
        "first": ("failed", "runner_system_failure"),
        "second": ("failed", "script_failure"),
        "third": ("failed", "runner_system_failure"),
        "never": ("skipped", None),
    }
    logs = {
        name: (await project.api.get(f"{project.url}/jobs/{job['id']}/trace")).body
        for name, job in jobs.items()
    }
    assert logs["second"] == "no more\n"
    assert logs["third"].startswith("ERROR: Job failed: FORGELET_DURATION has to be a number of seconds")
    given = [{"key": "FORGELET_RESULT", "value": "success"}]
    status, _ = await scene.ended(project, text, variables=given)
    assert status == "success"


async def test_python_gitlab_downloads_what_a_job_has_left(scene: Scene, project: CiProject) -> None:
    text = """
build:
  script: make
  variables:
    FORGELET_ARTIFACTS: '{"dist/app.js": "let it = 1", "junit.xml": "<testsuite><testcase/></testsuite>"}'
  artifacts: {paths: [dist], expire_in: 1 week, reports: {junit: junit.xml}}
bare: {script: make, variables: {FORGELET_ARTIFACTS: '{"a/b.txt": "c"}'}}
"""
    status, jobs = await scene.ended(project, text)
    assert status == "success"

    def use() -> None:
        with gitlab.Gitlab(scene.forge.base, private_token=project.developer.token) as client:
            found = client.projects.get(project.id)
            build = found.jobs.get(jobs["build"]["id"])
            assert {one["file_type"] for one in build.attributes["artifacts"]} >= {
                "archive",
                "junit",
                "trace",
            }
            assert build.artifacts_expire_at is not None
            with zipfile.ZipFile(io.BytesIO(build.artifacts())) as archive:  # type: ignore[operator]
                assert archive.namelist() == ["dist/app.js"]
            assert build.artifact("dist/app.js") == b"let it = 1"
            assert found.jobs.get(jobs["bare"]["id"]).artifact("a/b.txt") == b"c"
            report = found.pipelines.get(build.pipeline["id"]).test_report.get()
            assert report.total_count == 1

    await asyncio.to_thread(use)


async def test_a_job_lasts_by_the_services_clock(scene: Scene, project: CiProject) -> None:
    text = "sleep: {script: sleep}\nquick: {script: echo}\n"
    pipeline = await project.pipeline(text)

    async def quick_is_done() -> bool:
        jobs = await project.jobs(pipeline)
        return (jobs["sleep"]["status"], jobs["quick"]["status"]) == ("running", "success")

    await eventually(quick_is_done)
    scene.clock.move(seconds=599)
    assert (await project.jobs(pipeline))["sleep"]["status"] == "running"
    scene.clock.move(seconds=1)
    await scene.reaches(project, pipeline, "success")
    assert (await project.jobs(pipeline))["sleep"]["duration"] == 600
    late = await project.pipeline("sleep: {script: sleep, timeout: 5 minutes}")
    await scene.reaches(project, late, "running")
    scene.clock.move(minutes=5)
    await scene.reaches(project, late, "failed")
    job = (await project.jobs(late))["sleep"]
    assert (job["failure_reason"], job["duration"]) == ("job_execution_timeout", 300)


async def test_a_canceled_job_is_let_go_of_and_the_next_is_played(scene: Scene, project: CiProject) -> None:
    pipeline = await project.pipeline("sleep: {script: sleep}")
    await scene.reaches(project, pipeline, "running")
    canceled = await project.api.post(f"{project.url}/pipelines/{pipeline['id']}/cancel")
    assert canceled.status == 200, canceled
    assert await project.status(pipeline) == "canceled"
    status, _ = await scene.ended(project, "quick: {script: echo}")
    assert status == "success"


async def test_a_runner_that_was_removed_comes_back(scene: Scene, project: CiProject) -> None:
    token = scene.kept["token"]
    (runner,) = (await scene.forge.root.get("/runners/all")).body
    assert (await scene.forge.root.delete(f"/runners/{runner['id']}")).status == 204
    status, _ = await scene.ended(project, "again: {script: echo}")
    assert status == "success"
    assert scene.kept["token"] != token
    listed = (await scene.forge.root.get("/runners/all")).body
    assert [one["tag_list"] for one in [await one_runner(scene, one["id"]) for one in listed]] == [["*"]]


async def one_runner(scene: Scene, runner_id: int) -> dict[str, Any]:
    return dict((await scene.forge.root.get(f"/runners/{runner_id}")).body)


async def test_what_it_asks_is_not_in_the_journal(scene: Scene) -> None:
    for path in ("/api/v4/jobs/request", "/api/v4/jobs/*", "/api/v4/job"):
        seen = await scene.forge.anonymous.get(f"{scene.forge.base}/-/testing/requests?path={path}")
        assert (seen.status, seen.body) == (200, [])
