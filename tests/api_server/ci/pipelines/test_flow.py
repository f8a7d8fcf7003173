"""From a commit to the end of a pipeline: what runs when, and what comes of it."""

import pytest

from api_server.ci.pipelines import transitions
from tests.support.ci import bring, ci_project, eventually, happen, run

THREE_STAGES = """
stages: [build, test, deploy]
compile: {stage: build, script: make}
unit: {stage: test, script: make test}
lint: {stage: test, script: make lint, allow_failure: true}
release: {stage: deploy, script: make release, when: manual}
"""
BY_OUTCOME = """
stages: [build, after]
compile: {stage: build, script: make}
on success: {stage: after, script: echo}
on failure: {stage: after, script: echo, when: on_failure}
always: {stage: after, script: echo, when: always}
"""


@pytest.fixture(scope="session")
async def project(forge):
    return await ci_project(forge)


async def ids(project, pipeline) -> dict[str, int]:
    return {name: job["id"] for name, job in (await project.jobs(pipeline)).items()}


async def finish(project, job_id: int, event: str = "success", **values) -> None:
    """A runner takes the job and brings it to its end."""
    await run(project.forge, job_id)
    await happen(project.forge, job_id, event, **values)


async def is_pending(project, job_id: int) -> bool:
    return (await project.api.get(f"{project.url}/jobs/{job_id}")).body["status"] == "pending"


async def test_jobs_of_a_stage_wait_for_the_stages_before(project):
    pipeline = await project.pipeline(THREE_STAGES)
    assert pipeline["status"] == "pending"
    assert await project.statuses(pipeline) == {
        "compile": "pending", "unit": "created", "lint": "created", "release": "created"
    }  # fmt: skip
    job = await ids(project, pipeline)
    await run(project.forge, job["compile"])
    assert await project.status(pipeline) == "running"
    await happen(project.forge, job["compile"], "success")
    assert await project.statuses(pipeline) == {
        "compile": "success", "unit": "pending", "lint": "pending", "release": "created"
    }  # fmt: skip
    await finish(project, job["unit"])
    await finish(project, job["lint"], "drop", failure_reason="script_failure")
    assert (await project.statuses(pipeline))["release"] == "manual"
    assert await project.status(pipeline) == "success"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("success", {"on success": "pending", "on failure": "skipped", "always": "pending"}),
        ("drop", {"on success": "skipped", "on failure": "pending", "always": "pending"}),
    ],
)
async def test_when_decides_by_the_outcome_of_what_came_before(project, event, expected):
    pipeline = await project.pipeline(BY_OUTCOME)
    await finish(project, (await ids(project, pipeline))["compile"], event)
    assert {name: (await project.statuses(pipeline))[name] for name in expected} == expected


async def test_a_manual_job_that_may_not_fail_holds_up_what_comes_after(project):
    pipeline = await project.pipeline(
        "stages: [a, b]\ngate: {stage: a, script: echo, when: manual, allow_failure: false}\n"
        "next: {stage: b, script: echo}\n"
    )
    assert await project.statuses(pipeline) == {"gate": "manual", "next": "created"}
    assert await project.status(pipeline) == "manual"
    gate = (await ids(project, pipeline))["gate"]
    assert (await project.api.post(f"{project.url}/jobs/{gate}/play")).body["status"] == "pending"
    await finish(project, gate)
    assert (await project.statuses(pipeline))["next"] == "pending"


async def test_needs_go_past_stages_and_a_skipped_need_skips(project):
    pipeline = await project.pipeline("""
stages: [a, b, c]
fast: {stage: a, script: echo}
slow: {stage: a, script: echo}
after fast: {stage: b, script: echo, needs: [fast]}
at once: {stage: c, script: echo, needs: []}
optional: {stage: a, script: echo, when: manual}
after optional: {stage: b, script: echo, needs: [optional]}
""")
    assert await project.statuses(pipeline) == {
        "fast": "pending", "slow": "pending", "after fast": "created", "at once": "pending", "optional": "manual",
        "after optional": "skipped",
    }  # fmt: skip
    job = await ids(project, pipeline)
    await finish(project, job["fast"])
    assert (await project.statuses(pipeline))["after fast"] == "pending"
    await project.api.post(f"{project.url}/jobs/{job['optional']}/play")
    assert (await project.statuses(pipeline))["after optional"] == "created"
    await finish(project, job["optional"])
    assert (await project.statuses(pipeline))["after optional"] == "pending"


async def test_retry_gives_what_was_skipped_its_turn_again(project):
    """4.4."""
    pipeline = await project.pipeline(THREE_STAGES)
    job = await ids(project, pipeline)
    await finish(project, job["compile"], "drop")
    assert await project.status(pipeline) == "failed"
    assert await project.statuses(pipeline) == {
        "compile": "failed", "unit": "skipped", "lint": "skipped", "release": "skipped"
    }  # fmt: skip
    again = (await project.forge.root.post(f"{project.url}/jobs/{job['compile']}/retry")).body
    assert await project.statuses(pipeline) == {
        "compile": "pending", "unit": "created", "lint": "created", "release": "created"
    }  # fmt: skip
    jobs = await project.jobs(pipeline)
    assert {jobs[name]["user"]["username"] for name in ("compile", "unit")} == {"root"}
    await finish(project, again["id"])
    assert (await project.statuses(pipeline))["unit"] == "pending"


async def test_a_job_is_retried_by_itself_as_often_as_its_file_says(project):
    pipeline = await project.pipeline(
        "flaky:\n  script: echo\n  retry: {max: 2, when: [runner_system_failure, script_failure]}\n"
    )
    seen = []
    for reason in ("script_failure", "runner_system_failure", "script_failure"):
        job = (await project.jobs(pipeline))["flaky"]
        seen.append(job["id"])
        assert job["user"]["id"] == project.developer.id
        await finish(project, job["id"], "drop", failure_reason=reason)
    assert len(set(seen)) == 3
    assert await project.status(pipeline) == "failed"
    everything = await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/jobs?include_retried=true")
    assert [job["status"] for job in everything.body] == ["failed"] * 3


async def test_a_failure_that_retry_does_not_name_is_final(project):
    pipeline = await project.pipeline("flaky:\n  script: echo\n  retry: {max: 2, when: script_failure}\n")
    await finish(
        project, (await ids(project, pipeline))["flaky"], "drop", failure_reason="job_execution_timeout"
    )
    assert await project.status(pipeline) == "failed"


async def test_an_exit_code_that_retry_names_is_one_to_start_again_after(project):
    pipeline = await project.pipeline("flaky:\n  script: echo\n  retry: {max: 2, exit_codes: 137}\n")
    for exit_code, status in ((137, "pending"), (1, "failed")):
        job_id = (await ids(project, pipeline))["flaky"]
        await finish(project, job_id, "drop", failure_reason="script_failure", exit_code=exit_code)
        assert await project.status(pipeline) == status


async def test_exit_codes_that_are_allowed_make_an_allowed_failure(project):
    text = "lint:\n  script: echo\n  allow_failure: {exit_codes: [3, 137]}\n"
    for exit_code, status in ((137, "success"), (1, "failed")):
        pipeline = await project.pipeline(text)
        job_id = (await ids(project, pipeline))["lint"]
        await finish(project, job_id, "drop", failure_reason="script_failure", exit_code=exit_code)
        assert await project.status(pipeline) == status
        assert (await project.jobs(pipeline))["lint"]["allow_failure"] == (status == "success")


async def test_a_failure_that_was_allowed_is_not_so_beforehand_when_the_job_runs_again(project):
    job = await project.job("lint:\n  script: echo\n  allow_failure: {exit_codes: 3}\n")
    await finish(project, job["id"], "drop", failure_reason="script_failure", exit_code=3)
    again = (await project.api.post(f"{project.url}/jobs/{job['id']}/retry")).body
    assert again["allow_failure"] is False


async def test_jobs_of_a_resource_group_run_one_after_the_other_in_their_order(project):
    """4.2: enqueue of a job with a resource_group, across pipelines."""
    text = "deploy:\n  script: echo\n  resource_group: production\n"
    pipelines = [await project.pipeline(text) for _ in range(3)]
    first, second, third = [(await ids(project, pipeline))["deploy"] for pipeline in pipelines]

    await eventually(lambda: is_pending(project, first))
    assert await project.status(pipelines[1]) == "waiting_for_resource"
    await finish(project, first, "drop")
    await eventually(lambda: is_pending(project, second))
    assert not await is_pending(project, third)
    await project.api.post(f"{project.url}/jobs/{second}/cancel")
    await eventually(lambda: is_pending(project, third))


async def test_a_job_that_runs_its_after_script_still_holds_its_resource(project):
    text = "deploy:\n  script: echo\n  resource_group: canceling\n"
    first, second = [await project.job(text) for _ in range(2)]
    await eventually(lambda: is_pending(project, first["id"]))
    await bring(project.forge, first["id"], "canceling")
    async with project.forge.database.transaction() as transaction:
        await transitions.assign_resource(transaction, project.id, "canceling")
    assert not await is_pending(project, second["id"])


async def test_a_deleted_pipeline_gives_back_what_its_jobs_held(project):
    text = "deploy:\n  script: echo\n  resource_group: staging\n"
    first = await project.pipeline(text)
    holder = (await ids(project, first))["deploy"]
    await eventually(lambda: is_pending(project, holder))
    waiting = await project.job(text)
    assert (await project.forge.root.delete(f"{project.url}/pipelines/{first['id']}")).status == 204
    await eventually(lambda: is_pending(project, waiting["id"]))


async def test_a_delayed_job_starts_when_its_moment_has_come(project):
    pipeline = await project.pipeline(
        "soon:\n  script: echo\n  when: delayed\n  start_in: 1 second\n"
        "late:\n  script: echo\n  when: delayed\n  start_in: 2 hours\n"
    )
    assert await project.statuses(pipeline) == {"soon": "scheduled", "late": "scheduled"}
    assert await project.status(pipeline) == "scheduled"

    async def soon_is_pending() -> bool:
        return (await project.statuses(pipeline))["soon"] == "pending"

    await eventually(soon_is_pending, seconds=20)
    assert (await project.statuses(pipeline))["late"] == "scheduled"


async def test_canceling_a_pipeline_cancels_all_that_has_not_finished_and_retrying_runs_it_again(project):
    pipeline = await project.pipeline(THREE_STAGES)
    job = await ids(project, pipeline)
    await finish(project, job["compile"])
    where = f"{project.url}/pipelines/{pipeline['id']}"
    canceled = await project.api.post(f"{where}/cancel")
    assert (canceled.status, canceled.body["status"]) == (200, "canceled")
    assert await project.statuses(pipeline) == {
        "compile": "success", "unit": "canceled", "lint": "canceled", "release": "canceled"
    }  # fmt: skip
    retried = await project.api.post(f"{where}/retry")
    assert (retried.status, retried.body["status"]) == (201, "running")
    assert await project.statuses(pipeline) == {
        "compile": "success", "unit": "pending", "lint": "pending", "release": "created"
    }  # fmt: skip
    assert (await ids(project, pipeline))["compile"] == job["compile"]
