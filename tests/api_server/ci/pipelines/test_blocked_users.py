"""Pipelines of users who are blocked."""

from api_server.ci.pipelines import tasks
from api_server.ci.pipelines.creation import pipeline_maker
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.support.ci import MANUAL_JOB, CiProject, bring, ci_project, happen, run
from tests.support.forge import Client, Forge
from tests.support.waiting import until

UNFINISHED = """
done: {script: x}
running: {script: x, retry: 2}
pending: {script: x, retry: 2}
manual: {script: x, when: manual, allow_failure: false}
later: {script: x, stage: deploy, when: always}
"""


async def _schedule(project: CiProject, by: Client) -> str:
    """Create a schedule and return its path."""
    new = {"description": "nightly", "ref": "topic", "cron": "0 1 * * *"}
    made = (await by.post(f"{project.url}/pipeline_schedules", new, expect=201)).body
    return f"{project.url}/pipeline_schedules/{made['id']}"


async def test_what_runs_for_who_is_blocked_fails_for_good(forge: Forge) -> None:
    project = await ci_project(forge)
    pipelines = [await project.pipeline(UNFINISHED) for _ in range(2)]
    of_other = await project.pipeline(UNFINISHED, by=forge.root)
    jobs = await project.jobs(pipelines[0])
    await run(forge, jobs["running"]["id"])
    await run(forge, jobs["done"]["id"])
    await happen(forge, jobs["done"]["id"], "success")
    before = await project.statuses(of_other)
    hers, others = [await _schedule(project, by) for by in (project.api, forge.root)]
    await forge.root.post(f"/users/{project.developer.id}/block", expect=201)

    async def ended() -> bool:
        return [await project.status(pipeline) for pipeline in pipelines] == ["failed", "failed"]

    async def is_deactivated() -> bool:
        return not (await forge.root.get(hers)).body["active"]

    await until(ended)
    await until(is_deactivated)
    assert (await forge.root.get(others)).body["active"]
    shown = await project.jobs(pipelines[0], "include_retried=true")
    assert {name: job["status"] for name, job in shown.items()} == {
        "done": "success", "running": "failed", "pending": "failed", "manual": "failed", "later": "failed"
    }  # fmt: skip
    assert {job.get("failure_reason") for job in shown.values()} == {None, "user_blocked"}
    assert set((await project.statuses(pipelines[1])).values()) == {"failed"}
    assert await project.statuses(of_other) == before


async def test_what_runs_for_who_is_no_longer_an_administrator_goes_on(forge: Forge) -> None:
    project = await ci_project(forge)
    pipeline = await project.pipeline()
    await forge.root.put(f"/users/{project.developer.id}", {"admin": True}, expect=200)
    await forge.root.put(f"/users/{project.developer.id}", {"admin": False}, expect=200)
    await tasks.drop_pipelines(forge.database, project.developer.id)
    assert await project.status(pipeline) == "pending"


async def test_a_bridge_of_who_was_blocked_meanwhile_starts_nothing_elsewhere(forge: Forge) -> None:
    here, there = await ci_project(forge), await ci_project(forge)
    await there.commit(MANUAL_JOB, branch="main")
    await forge.member("projects", there.id, here.developer, Role.MAINTAINER)
    pipeline = await here.pipeline(f"there:\n  when: manual\n  trigger: {there.path}\n")
    bridge_id = (await here.bridges(pipeline))["there"]["id"]
    await bring(forge, bridge_id, "pending")
    await forge.execute("UPDATE users SET state = 'blocked' WHERE id = %(id)s", id=here.developer.id)
    await tasks.start_bridge(pipeline_maker(forge.server.app[SERVICES]), bridge_id)
    assert (await forge.root.get(f"{there.url}/pipelines?source=pipeline")).body == []
    reason = await forge.database.value("SELECT failure_reason FROM jobs WHERE id = %(id)s", id=bridge_id)
    assert reason == "insufficient_bridge_permissions"
