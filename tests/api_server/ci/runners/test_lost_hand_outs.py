"""Jobs whose runner never heard of them: the answer that handed them out was lost on its way."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import orjson
import pytest

from api_server.ci.jobs import upkeep, upkeep_queries
from api_server.state.secrets import digest
from api_server.state.statements import Statement
from api_server.web.auth_queries import acknowledge_job
from tests.support.ci import CiProject, ci_project
from tests.support.clock import MovedClock, forge_with_clock
from tests.support.forge import Answer, Forge
from tests.support.runner import Runner, RunningJob, a_runner
from tests.support.waiting import until_somebody_waits

#: Seconds, as the settings' defaults have them.
RUNNER_TIMEOUT, HAND_OUT_TIMEOUT = 3600, 60


@attrs.frozen
class Scene:
    """A server whose clock the test moves, a project of its own, and a runner for it."""

    forge: Forge
    clock: MovedClock
    project: CiProject
    runner: Runner

    async def look(self) -> None:
        await upkeep.look_for_lost_jobs(self.forge.database, RUNNER_TIMEOUT, HAND_OUT_TIMEOUT)

    async def pass_time(self, seconds: int) -> None:
        """With the looks that the server takes meanwhile, the first one just now."""
        await self.look()
        while seconds:
            self.clock.move(seconds=min(seconds, upkeep.LOOK_EVERY_SECONDS))
            seconds -= min(seconds, upkeep.LOOK_EVERY_SECONDS)
            await self.look()

    async def shown(self, job: RunningJob) -> dict[str, Any]:
        return dict((await self.forge.root.get(f"{self.project.url}/jobs/{job.id}")).body)

    async def git(self, job: RunningJob) -> Answer:
        credentials = b64encode(f"gitlab-ci-token:{job.token}".encode()).decode()
        url = f"{self.forge.base}/{self.project.path}.git/info/refs?service=git-upload-pack"
        return await job.client.get(url, headers={"Authorization": f"Basic {credentials}"})


@pytest.fixture(scope="module")
async def moved(new_database: Any, tmp_path_factory: Any) -> AsyncIterator[tuple[Forge, MovedClock]]:
    async with forge_with_clock(new_database(), tmp_path_factory.mktemp("lost")) as running:
        yield running


@pytest.fixture
async def scene(moved: tuple[Forge, MovedClock]) -> Scene:
    forge, clock = moved
    project = await ci_project(forge)
    scene = Scene(forge, clock, project, await a_runner(forge, project_id=project.id))
    await scene.look()
    await scene.pass_time(120)
    return scene


async def test_it_is_handed_out_again_once(scene: Scene) -> None:
    await scene.project.pipeline("build: {script: 'true', variables: {CI_DEBUG_TRACE: 'true'}}")
    first = await scene.runner.job()
    await scene.pass_time(60)
    assert (await scene.shown(first))["status"] == "running"
    await scene.pass_time(1)
    shown = await scene.shown(first)
    assert (shown["status"], shown["runner"], shown["started_at"]) == ("pending", None, None)
    assert await scene.project.status({"id": shown["pipeline"]["id"]}) == "pending"
    second = await scene.runner.job()
    assert second.id == first.id
    assert second.token != first.token
    await scene.pass_time(61)
    shown = await scene.shown(first)
    assert (shown["status"], shown["failure_reason"]) == ("failed", "stuck_or_timeout_failure")
    assert (await scene.runner.poll()).status == 204


async def test_the_token_of_the_lost_answer_opens_nothing(scene: Scene) -> None:
    """Its runner was slow, not gone: it hears that the job is somebody else's."""
    await scene.project.pipeline()
    first = await scene.runner.job()
    await scene.pass_time(61)
    for handed_out_again in (False, True):
        if handed_out_again:
            second = await scene.runner.job()
        refused = [
            await first.append(b"late\n", 0),
            await first.update("success"),
            await first.upload(b"late"),
            await first.client.get(f"/jobs/{first.id}/artifacts", headers={"JOB-TOKEN": first.token}),
        ]
        assert [(answer.status, answer.body) for answer in refused] == [
            (403, {"message": "403 Forbidden"})
        ] * 4
        assert (await first.client.get("/job", headers={"JOB-TOKEN": first.token})).status == 401
        assert (await scene.git(first)).status == 401
    await second.log(b"mine\n")
    await second.finish()
    shown = await scene.forge.root.get(f"{scene.project.url}/jobs/{first.id}/trace")
    assert (shown.status, shown.body) == (200, "mine\n")


WORDS: dict[str, Callable[[Scene, RunningJob], Awaitable[Answer]]] = {
    "trace": lambda _, job: job.append(b"a line\n", 0),
    "empty trace": lambda _, job: job.append(b"", 0),
    "update": lambda _, job: job.update("running"),
    "artifacts": lambda _, job: job.upload(b"content", artifact_type="junit", artifact_format="raw"),
    "may it upload": lambda _, job: job.client.post(
        f"/jobs/{job.id}/artifacts/authorize", {"token": job.token}
    ),
    "its job": lambda _, job: job.client.get("/job", headers={"JOB-TOKEN": job.token}),
    "clone": lambda scene, job: scene.git(job),
}


@pytest.mark.parametrize("word", WORDS)
async def test_after_a_word_of_its_runner_it_stays_where_it_is(scene: Scene, word: str) -> None:
    await scene.project.pipeline()
    job = await scene.runner.job()
    await scene.pass_time(59)
    assert (await WORDS[word](scene, job)).status < 300
    await scene.pass_time(120)
    assert (await scene.shown(job))["status"] == "running"
    await job.finish()


async def test_a_word_that_comes_while_it_is_taken_back_counts(scene: Scene) -> None:
    """Whoever has the job's row first."""
    await scene.project.pipeline()
    job = await scene.runner.job()
    await scene.pass_time(45)
    scene.clock.move(seconds=30)
    async with scene.forge.database.transaction() as transaction:
        assert await acknowledge_job(transaction, digest(job.token))
        look = asyncio.create_task(scene.look())
        await until_somebody_waits(scene.forge.database)
    await look
    assert (await scene.shown(job))["status"] == "running"
    await job.finish()


async def test_asking_for_the_artifacts_of_an_earlier_job_is_a_word(scene: Scene) -> None:
    await scene.project.pipeline("one: {script: 'true', stage: build}\ntwo: {script: 'true', stage: test}\n")
    one = await scene.runner.job()
    assert (await one.upload(b"content")).status == 201
    await one.finish()
    two = await scene.runner.job()
    earlier = await two.client.get(f"/jobs/{one.id}/artifacts", headers={"JOB-TOKEN": two.token})
    assert (earlier.status, earlier.body) == (200, "content")
    await scene.pass_time(120)
    assert (await scene.shown(two))["status"] == "running"
    await two.finish()


async def test_a_canceled_job_whose_runner_was_never_heard_of_is_over(scene: Scene) -> None:
    """It was to finish `after_script` first."""
    await scene.project.pipeline()
    job = await scene.runner.job(info={"features": {"cancel_gracefully": True}})
    assert (await scene.project.api.post(f"{scene.project.url}/jobs/{job.id}/cancel")).body[
        "status"
    ] == "canceling"
    await scene.pass_time(61)
    assert (await scene.shown(job))["status"] == "canceled"


@pytest.mark.parametrize("hours", [0.1, 5, -5])
async def test_an_outage_is_no_silence_of_runners(scene: Scene, hours: float) -> None:
    """Nobody listened, or the clock has jumped: a runner that has the job gets its time to say so."""
    await scene.project.pipeline(
        "one: {script: 'true', timeout: 1 day}\ntwo: {script: 'true', timeout: 1 day}\n"
    )
    unheard, known = await scene.runner.job(), await scene.runner.job()
    await known.log(b"a line\n")
    scene.clock.move(hours=hours)
    await scene.look()
    await scene.pass_time(45)
    assert [(await scene.shown(job))["status"] for job in (unheard, known)] == ["running"] * 2
    await unheard.log(b"a line\n")
    assert (await known.append(b"another\n", 7)).status == 202
    await scene.pass_time(90)
    for job in (unheard, known):
        assert (await scene.shown(job))["status"] == "running"
        await job.finish()


MANY = """
    INSERT INTO jobs (project_id, pipeline_id, kind, status, name, stage, stage_index, when_run, allow_failure, plan,
        created_at, contacted_at, started_at, unacknowledged_since)
    SELECT project_id, pipeline_id, kind, 'running', 'many ' || number, stage, stage_index, when_run, allow_failure,
        plan, created_at, %(now)s, %(now)s,
        CASE WHEN number %% 1000 = 0 THEN %(now)s - make_interval(days => 1, secs => number) END
    FROM jobs, generate_series(1, 4000) number WHERE jobs.id = %(id)s
"""


async def test_a_look_reads_what_it_finds_however_many_jobs_run(scene: Scene) -> None:
    job = await scene.project.job()
    async with scene.forge.database.transaction() as transaction:
        await transaction.run(MANY, id=job["id"])
        await transaction.run("ANALYZE jobs")
        since = scene.clock.now
        found = await upkeep_queries.unacknowledged_jobs(transaction, since, 200)
        plan = await explained(transaction, upkeep_queries.UNACKNOWLEDGED_JOBS, since=since, most=200)
        await transaction.run("DELETE FROM jobs WHERE name LIKE 'many %%'")
    assert len(found) == 4
    assert [(node["Node Type"], node.get("Index Name"), node["Actual Rows"]) for node in plan] == [
        ("Index Scan", "jobs_unacknowledged", 4)
    ]


async def explained(transaction: Any, statement: Statement, **parameters: Any) -> list[dict[str, Any]]:
    """The nodes of the plan that read `jobs`."""
    (top,) = orjson.loads(
        await transaction.value(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", **parameters)
    )
    nodes, found = [top["Plan"]], []
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", ())
        if node.get("Relation Name") == "jobs":
            found.append(node)
    return found
