"""`PUT /jobs/:id`: how jobs end, and when their log is complete."""

import datetime

import pytest

from api_server.ci.jobs import upkeep
from tests.support.ci import CiProject
from tests.support.forge import Forge
from tests.support.runner import Runner, RunningJob, a_runner, checksum


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
    """On Windows a program that was stopped for a memory fault has such a one."""
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
    """Seconds without a word of the runner, and since the start; a runner's own limit counts where it is less."""
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
