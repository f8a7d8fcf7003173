"""The end of jobs: by `PUT /jobs/:id`, or because their runner never got them."""

import asyncio
import datetime
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import pytest

from api_server.ci.jobs import upkeep, upkeep_queries
from api_server.state.secrets import digest
from api_server.web.auth_queries import acknowledge_job
from tests.support.ci import CiProject, ci_project
from tests.support.clock import MovedClock, forge_with_clock
from tests.support.forge import Answer, Forge
from tests.support.plans import scans
from tests.support.runner import Runner, RunningJob, a_runner, checksum
from tests.support.waiting import until_somebody_waits


async def shown(project: CiProject, job: RunningJob) -> dict:
    return dict((await project.api.get(f"{project.url}/jobs/{job.id}")).body)


@pytest.mark.parametrize("state", [None, "running"])
async def test_a_job_that_goes_on_is_200(job: RunningJob, state: str | None) -> None:
    answer = await job.update(state)
    assert (answer.status, answer.body, answer.headers["Job-Status"]) == (200, "200", "running")


async def test_an_unknown_state_is_400(job: RunningJob) -> None:
    answer = await job.update("fine")
    assert (answer.status, answer.body) == (400, {"error": "state does not have a valid value"})


@pytest.mark.parametrize(
    ("reported", "kept"),
    [("script_failure", "script_failure"), ("no_such_reason", "unknown_failure"), (None, "unknown_failure")],
)
async def test_failure_reasons(project: CiProject, job: RunningJob, reported: str | None, kept: str) -> None:
    await job.finish("failed", failure_reason=reported, exit_code=1)
    found = await shown(project, job)
    assert (found["status"], found["failure_reason"], found["allow_failure"]) == ("failed", kept, False)


@pytest.mark.parametrize(("exit_code", "allowed"), [(3, True), (4, False), (None, False)])
async def test_exit_codes_that_are_allowed(
    project: CiProject, runner: Runner, exit_code: int | None, allowed: bool
) -> None:
    pipeline = await project.pipeline("build: {script: 'true', allow_failure: {exit_codes: [3]}}")
    job = await runner.job()
    await job.finish("failed", failure_reason="script_failure", exit_code=exit_code)
    assert (await shown(project, job))["allow_failure"] is allowed
    assert await project.status(pipeline) == ("success" if allowed else "failed")


@pytest.mark.parametrize("exit_code", [3221225477, -(2**40)])
async def test_exit_codes_of_more_than_31_bits(project: CiProject, job: RunningJob, exit_code: int) -> None:
    """A program on Windows has such an exit code after a memory fault."""
    await job.finish("failed", failure_reason="script_failure", exit_code=exit_code)
    assert (await shown(project, job))["status"] == "failed"


async def test_the_token_ends_with_the_job(forge: Forge, job: RunningJob) -> None:
    await job.finish()
    answer = await job.update("success")
    assert (answer.status, answer.headers["Job-Status"]) == (403, "success")
    assert answer.body == {"message": "403 Forbidden - Job is not running"}
    assert (await forge.anonymous.get("/job", headers={"JOB-TOKEN": job.token})).status == 401


async def test_wrong_tokens_and_unknown_jobs_are_403(job: RunningJob) -> None:
    wrong = RunningJob(job.client, job.payload | {"token": "fljob-wrong"})
    unknown = RunningJob(job.client, job.payload | {"id": 2**40})
    for one in (wrong, unknown):
        assert (await one.update("success")).status == 403


async def test_a_job_whose_log_is_incomplete_is_412_until_it_is(project: CiProject, job: RunningJob) -> None:
    text = b"one\ntwo\n"
    await job.log(text[:4])
    assert (await job.update("success", output=checksum(text))).status == 412
    assert (await shown(project, job))["status"] == "running"
    restarted = await job.append(text, 0)
    assert (restarted.status, restarted.headers["Range"]) == (416, "0-4")
    await job.append(text[4:], 4)
    assert (await job.update("success", output=checksum(text))).status == 200


async def test_a_job_without_any_of_its_log_is_412(job: RunningJob) -> None:
    assert (await job.update("success", output=checksum(b"text"))).status == 412
    assert (await job.update("success", output=checksum(b""))).status == 200


async def test_a_log_with_another_checksum_is_sent_again_once(project: CiProject, job: RunningJob) -> None:
    await job.log(b"damaged!")
    assert (await job.update("success", output=checksum(b"original"))).status == 412
    assert (await job.append(b"original", 0)).status == 202
    assert (await job.update("success", output=checksum(b"original"))).status == 200
    assert (await project.api.get(f"{project.url}/jobs/{job.id}/trace")).body == "original"


async def test_a_runner_that_never_agrees_does_not_ask_forever(job: RunningJob) -> None:
    await job.log(b"text")
    assert (await job.update("success", output=checksum(b"xxxx"))).status == 412
    await job.log(b"text")
    assert (await job.update("success", output=checksum(b"xxxx"))).status == 200


async def test_a_log_that_is_being_appended_to_is_202(forge: Forge, job: RunningJob) -> None:
    await job.log(b"text")
    async with forge.database.transaction() as transaction:
        await transaction.row("SELECT FROM job_logs WHERE job_id = %(id)s FOR UPDATE", id=job.id)
        answer = await job.update("success", output=checksum(b"text"))
        assert (answer.status, answer.headers["X-GitLab-Trace-Update-Interval"]) == (202, "60")
    assert (await job.update("success", output=checksum(b"text"))).status == 200


async def test_masking_does_not_disturb_the_checksum(job: RunningJob) -> None:
    text = b"token " + job.token.encode()
    await job.log(text)
    assert (await job.update("success", output=checksum(text))).status == 200


async def test_a_runner_that_cancels_gracefully_hears_of_it(project: CiProject, runner: Runner) -> None:
    await project.pipeline()
    job = await runner.job(info={"features": {"cancel_gracefully": True}})
    assert (await project.api.post(f"{project.url}/jobs/{job.id}/cancel")).body["status"] == "canceling"
    answer = await job.update("running")
    assert (answer.status, answer.headers["Job-Status"]) == (200, "canceling")
    assert (await job.append(b"cleaning up\n", 0)).headers["Job-Status"] == "canceling"
    await job.finish("failed")
    assert (await shown(project, job))["status"] == "canceled"


MAKE_OLD = """
    UPDATE jobs SET contacted_at = %(now)s - %(silent)s, started_at = %(now)s - %(running)s WHERE id = %(id)s
"""

LISTENING_SINCE_YESTERDAY = """
    INSERT INTO runner_watch (looked_at, listening_since) VALUES (%(now)s, %(now)s - interval '1 day')
    ON CONFLICT (one) DO UPDATE SET looked_at = excluded.looked_at, listening_since = excluded.listening_since
"""


@pytest.mark.parametrize(
    ("silent", "running", "maximum_timeout", "outcome"),
    [
        (0, 0, None, ("running", None)),
        (3500, 3500, None, ("running", None)),
        (3700, 3700, None, ("failed", "stuck_or_timeout_failure")),
        (0, 3600 + 30, None, ("running", None)),
        (0, 3600 + 90, None, ("failed", "job_execution_timeout")),
        (0, 600 + 30, 600, ("running", None)),
        (0, 600 + 90, 600, ("failed", "job_execution_timeout")),
    ],
)
async def test_jobs_without_a_runner_or_out_of_time_fail(
    forge: Forge, project: CiProject, silent: int, running: int, maximum_timeout: int | None, outcome: tuple
) -> None:
    """The parameters are the seconds without a request of the runner, and since the start; a runner's own limit
    applies if it is lower."""
    runner = await a_runner(forge, project_id=project.id, maximum_timeout=maximum_timeout)
    await project.pipeline()
    job = await runner.job()
    async with forge.database.transaction() as transaction:
        await transaction.run(
            MAKE_OLD,
            id=job.id,
            silent=datetime.timedelta(seconds=silent),
            running=datetime.timedelta(seconds=running),
        )
        await transaction.run(LISTENING_SINCE_YESTERDAY)
    await upkeep.look_for_lost_jobs(
        forge.database, forge.settings.runner_timeout, forge.settings.hand_out_timeout
    )
    found = await shown(project, job)
    assert (found["status"], found.get("failure_reason")) == outcome


#: Seconds, which are the defaults of the settings.
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
        """Move the clock with the checks that the server makes meanwhile, the first one before the move."""
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
    """Its runner was only slow: it gets the answer that the job belongs to another runner."""
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
    """The transaction that locks the job's row first decides."""
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
    """Otherwise the runner would finish `after_script` first."""
    await scene.project.pipeline()
    job = await scene.runner.job(info={"features": {"cancel_gracefully": True}})
    assert (await scene.project.api.post(f"{scene.project.url}/jobs/{job.id}/cancel")).body[
        "status"
    ] == "canceling"
    await scene.pass_time(61)
    assert (await scene.shown(job))["status"] == "canceled"


@pytest.mark.parametrize("hours", [0.1, 5, -5])
async def test_an_outage_is_no_silence_of_runners(scene: Scene, hours: float) -> None:
    """The server did not listen, or the clock was moved: a runner that has the job gets its time to report."""
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
        plan = await scans(transaction, "jobs", upkeep_queries.UNACKNOWLEDGED_JOBS, since=since, limit=200)
        await transaction.run("DELETE FROM jobs WHERE name LIKE 'many %%'")
    assert len(found) == 4
    assert [(node["Node Type"], node.get("Index Name"), node["Actual Rows"]) for node in plan] == [
        ("Index Scan", "jobs_unacknowledged", 4)
    ]
