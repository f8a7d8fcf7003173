"""Statuses of commits beside the jobs of their pipelines: what counts them, and what leaves them alone."""

from typing import Any

import pytest

from api_server.ci.jobs import upkeep
from tests.support.ci import CiProject, ci_project, eventually, happen, run
from tests.support.commit_statuses import a_commit, pipeline_of, said, say
from tests.support.forge import Forge, new_name
from tests.support.merge_requests import commit

MAKE_OLD = """
    UPDATE jobs SET started_at = %(now)s - interval '7 days', contacted_at = %(now)s - interval '7 days'
    WHERE id = %(id)s
"""
LISTENING_SINCE_LAST_WEEK = """
    INSERT INTO runner_watch (looked_at, listening_since) VALUES (%(now)s, %(now)s - interval '8 days')
    ON CONFLICT (one) DO UPDATE SET looked_at = excluded.looked_at, listening_since = excluded.listening_since
"""


@pytest.fixture(scope="module")
async def project(forge: Forge) -> CiProject:
    return await ci_project(forge)


async def test_a_status_joins_the_pipeline_of_its_commit_and_no_runner_or_retry_touches_it(
    project: CiProject,
) -> None:
    text = "stages: [one, two]\nbuild: {stage: one, script: make}\nlast: {stage: two, script: make}\n"
    pipeline = await project.pipeline(text)
    status = (await say(project, pipeline["sha"], "skipped", name="outside", ref="topic")).body
    assert status["pipeline_id"] == pipeline["id"]
    taken = await say(project, pipeline["sha"], "success", name="build")
    assert (taken.status, taken.body) == (400, {"message": {"name": ["has already been taken"]}})
    jobs = await project.jobs(pipeline)
    assert sorted(jobs) == ["build", "last"]
    for action in ("retry", "play", "cancel", "erase"):
        assert (await project.api.post(f"{project.url}/jobs/{status['id']}/{action}")).status == 404
    assert (await project.api.get(f"{project.url}/jobs/{status['id']}")).status == 404
    await run(project.forge, jobs["build"]["id"])
    await happen(project.forge, jobs["build"]["id"], "drop", failure_reason="script_failure")
    assert await project.statuses(pipeline) == {"build": "failed", "last": "skipped", "outside": "skipped"}
    assert (await project.api.post(f"{project.url}/jobs/{jobs['build']['id']}/retry")).status == 201
    assert await project.statuses(pipeline) == {"build": "pending", "last": "created", "outside": "skipped"}
    everything = await said(project, pipeline["sha"])
    assert [one["name"] for one in everything] == ["last", "outside", "build"]
    assert [one["name"] for one in await said(project, pipeline["sha"], "stage=external")] == ["outside"]
    assert [one["name"] for one in await said(project, pipeline["sha"], "name=last")] == ["last"]


async def test_a_pipeline_is_retried_without_and_canceled_with_its_statuses(project: CiProject) -> None:
    pipeline = await project.pipeline()
    await say(project, pipeline["sha"], "failed", name="over")
    await say(project, pipeline["sha"], "running", name="at work")
    answer = await project.api.post(f"{project.url}/pipelines/{pipeline['id']}/cancel")
    assert answer.body["status"] == "failed"
    assert await project.statuses(pipeline) == {"build": "canceled", "over": "failed", "at work": "canceled"}
    await project.api.post(f"{project.url}/pipelines/{pipeline['id']}/retry")
    assert await project.statuses(pipeline) == {"build": "pending", "over": "failed", "at work": "canceled"}


async def test_a_merge_waits_for_the_statuses_of_its_head(project: CiProject) -> None:
    root, url = project.forge.root, f"{project.url}/merge_requests"
    assert (await root.put(project.url, {"only_allow_merge_if_pipeline_succeeds": True})).status == 200
    branch = new_name("proposed")
    sha = await commit(root, {"id": project.id}, branch, start_branch="main")
    wanted = {"source_branch": branch, "target_branch": "main", "title": "Wait"}
    iid = (await root.post(url, wanted)).body["iid"]

    async def detailed() -> str:
        return str((await root.get(f"{url}/{iid}")).body["detailed_merge_status"])

    await eventually(lambda: _is(detailed, "ci_must_pass"))
    for state, then in (
        ("running", "ci_still_running"),
        ("failed", "ci_must_pass"),
        ("success", "mergeable"),
    ):
        assert (await say(project, sha, state, name="gate")).status == 201
        assert await detailed() == then
        merged = await root.put(f"{url}/{iid}/merge")
        assert merged.status == (200 if state == "success" else 405), merged


async def test_a_status_is_what_a_merge_by_itself_may_wait_for(project: CiProject) -> None:
    root, url, branch = project.forge.root, f"{project.url}/merge_requests", new_name("proposed")
    sha = await commit(root, {"id": project.id}, branch, start_branch="main")
    assert (await say(project, sha, "running", name="gate")).status == 201
    wanted = {"source_branch": branch, "target_branch": "main", "title": "Wait"}
    iid = (await root.post(url, wanted)).body["iid"]

    async def shown(key: str) -> Any:
        return (await root.get(f"{url}/{iid}")).body[key]

    await eventually(lambda: _is(lambda: shown("merge_status"), "can_be_merged"))
    waiting = await root.put(f"{url}/{iid}/merge", {"merge_when_pipeline_succeeds": True})
    assert (waiting.status, waiting.body["state"]) == (200, "opened"), waiting
    assert (await say(project, sha, "success", name="gate")).status == 201
    await eventually(lambda: _is(lambda: shown("state"), "merged"))


async def _is(asked: Any, wanted: str) -> bool:
    return bool(await asked() == wanted)


async def test_what_is_said_of_a_merge_requests_pipeline_is_judged_by_its_source_branch(
    project: CiProject,
) -> None:
    root, branch = project.forge.root, new_name("proposed")
    text = "build: {script: echo, rules: [{if: $CI_MERGE_REQUEST_IID}]}\n"
    await project.commit(text, branch=branch, message="Ask for a pipeline")
    wanted = {"source_branch": branch, "target_branch": "main", "title": "Judge"}
    made = (await root.post(f"{project.url}/merge_requests", wanted)).body

    async def own() -> Any:
        return (await root.get(f"{project.url}/merge_requests/{made['iid']}/pipelines")).body

    (pipeline,) = await eventually(own)
    sha, ref = made["sha"], f"refs/merge-requests/{made['iid']}/head"
    assert (await say(project, sha, "running", name="one")).body["pipeline_id"] == pipeline["id"]
    assert (await say(project, sha, "running", name="two", ref=ref)).body["ref"] == ref
    assert (await root.post(f"{project.url}/protected_branches?name={branch}")).status == 201
    for values in ({}, {"ref": ref}, {"pipeline_id": pipeline["id"]}):
        refused = await say(project, sha, "success", name="one", **values)
        assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"})
    nowhere = await say(project, "main", "success", ref=ref)
    assert (nowhere.status, nowhere.body) == (404, {"message": "404 References for commit Not Found"})


async def test_nobody_waits_for_the_runner_of_a_status_or_a_bridge(project: CiProject) -> None:
    """They may run for a week without a word."""
    status = (await say(project, await a_commit(project), "running")).body
    await project.commit("inner: {script: echo, when: manual, allow_failure: false}", path="child.yml")
    pipeline = await project.pipeline("child: {trigger: {include: child.yml, strategy: depend}}")
    bridge = (await project.bridges(pipeline))["child"]["id"]
    await eventually(lambda: _is(lambda: _status_of(project, pipeline), "running"))
    async with project.forge.database.transaction() as transaction:
        for job_id in (status["id"], bridge):
            await transaction.run(MAKE_OLD, id=job_id)
        await transaction.run(LISTENING_SINCE_LAST_WEEK)
    await upkeep.look_for_lost_jobs(project.forge.database, 3600, 60)
    assert await _status_of(project, pipeline) == "running"
    assert (await pipeline_of(project, status))["status"] == "running"


async def _status_of(project: CiProject, pipeline: dict[str, Any]) -> str:
    return (await project.statuses(pipeline))["child"]
