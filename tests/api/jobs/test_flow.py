"""From a commit to the end of a pipeline: what runs when, and what comes of it."""

from tests.support.ci import ci_project, happen, run

THREE_STAGES = """
stages: [build, test, deploy]
compile: {stage: build, script: make}
unit: {stage: test, script: make test}
lint: {stage: test, script: make lint, allow_failure: true}
release: {stage: deploy, script: make release, when: manual}
"""


async def test_jobs_of_a_stage_wait_for_the_stages_before(forge):
    project = await ci_project(forge)
    pipeline = await project.pipeline(THREE_STAGES)
    assert pipeline["status"] == "pending"
    assert await project.statuses(pipeline) == {
        "compile": "pending", "unit": "created", "lint": "created", "release": "created"
    }  # fmt: skip
    jobs = await project.jobs(pipeline)
    await run(forge, jobs["compile"]["id"])
    assert await project.status(pipeline) == "running"
    await happen(forge, jobs["compile"]["id"], "success")
    assert await project.statuses(pipeline) == {
        "compile": "success", "unit": "pending", "lint": "pending", "release": "created"
    }  # fmt: skip
    for name in ("unit", "lint"):
        await run(forge, jobs[name]["id"])
    await happen(forge, jobs["unit"]["id"], "success")
    await happen(forge, jobs["lint"]["id"], "drop", failure_reason="script_failure")
    assert (await project.statuses(pipeline))["release"] == "manual"
    assert await project.status(pipeline) == "success"
