"""Pipelines that jobs of other pipelines start."""

from typing import Any

import attrs

from api_server.ci.pipelines import tasks
from api_server.ci.pipelines.creation import Maker, Wanted, maker
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.support.ci import MANUAL_JOB, CiProject, bring, ci_project, eventually, happen, run
from tests.support.forge import Forge


async def test_a_child_pipeline_is_started_and_its_outcome_taken_over(forge):
    project = await ci_project(forge)
    await project.commit("inner:\n  script: echo $COLOR\n", path="child.yml")
    pipeline = await project.pipeline(
        "stages: [a, b]\nchild:\n  stage: a\n  variables: {COLOR: red}\n"
        "  trigger: {include: child.yml, strategy: depend}\nnext: {stage: b, script: echo}\n"
    )

    async def downstream():
        return (await project.bridges(pipeline))["child"]["downstream_pipeline"]

    child = await eventually(downstream)
    assert (child["project_id"], child["source"], child["sha"]) == (
        project.id,
        "parent_pipeline",
        pipeline["sha"],
    )
    variables = await project.api.get(f"{project.url}/pipelines/{child['id']}/variables")
    assert variables.body == [{"variable_type": "env_var", "key": "COLOR", "value": "red", "raw": False}]

    async def listed(query: str) -> list[int]:
        return [one["id"] for one in (await project.api.get(f"{project.url}/pipelines?{query}")).body]

    assert child["id"] not in await listed("")
    assert pipeline["id"] in await listed("scope=branches")
    assert await listed("source=parent_pipeline") == [child["id"]]
    assert await listed("source=parent_pipeline&scope=branches") == [child["id"]]
    assert child["id"] not in await listed(f"ref={pipeline['ref']}")

    async def bridge_is(status: str) -> bool:
        return (await project.statuses(pipeline))["child"] == status

    await eventually(lambda: bridge_is("running"))
    inner = (await project.jobs(child))["inner"]
    await run(forge, inner["id"])
    await happen(forge, inner["id"], "drop", failure_reason="script_failure")
    await eventually(lambda: bridge_is("failed"))
    assert (await project.statuses(pipeline))["next"] == "skipped"
    again = (await project.api.post(f"{project.url}/jobs/{inner['id']}/retry")).body
    await eventually(lambda: bridge_is("running"))
    await run(forge, again["id"])
    await happen(forge, again["id"], "success")
    await eventually(lambda: bridge_is("success"))


async def test_a_bridge_may_mirror_the_status_of_its_child_pipeline_at_each_moment(forge: Forge) -> None:
    project = await ci_project(forge)
    await project.commit("inner: {script: echo, when: manual, allow_failure: false}\n", path="child.yml")
    await project.commit("inner: {script: echo, when: on_failure}\n", path="skipped.yml")
    pipeline = await project.pipeline(
        "child:\n  trigger: {include: child.yml, strategy: mirror}\n"
        "depends:\n  trigger: {include: child.yml, strategy: depend}\n"
        "skipped:\n  trigger: {include: skipped.yml, strategy: mirror}\n"
        "not mirrored:\n  trigger: {include: skipped.yml, strategy: depend}\n  allow_failure: true\n"
    )

    async def become(child: str, of_pipeline: str, **others: str) -> None:
        wanted = {
            "child": child,
            "depends": "running",
            "skipped": "skipped",
            "not mirrored": "failed",
        } | others

        async def are() -> bool:
            return await project.statuses(pipeline) == wanted

        await eventually(are)
        assert await project.status(pipeline) == of_pipeline

    await become("manual", "running")
    bridges = await project.bridges(pipeline)
    refused = await project.api.post(f"{project.url}/jobs/{bridges['child']['id']}/play")
    assert (refused.status, refused.body) == (400, {"message": "400 Bad request - Unplayable Job"})
    inner = (await project.jobs(bridges["child"]["downstream_pipeline"]))["inner"]
    assert (await project.api.post(f"{project.url}/jobs/{inner['id']}/play")).status == 200
    await become("running", "running")
    await run(forge, inner["id"])
    await happen(forge, inner["id"], "drop", failure_reason="script_failure")
    await become("failed", "running")
    again = (await project.api.post(f"{project.url}/jobs/{inner['id']}/retry")).body
    await become("running", "running")
    await run(forge, again["id"])
    await happen(forge, again["id"], "success")
    await become("success", "running")
    other = (await project.jobs(bridges["depends"]["downstream_pipeline"]))["inner"]
    await happen(forge, other["id"], "cancel")
    await become("success", "canceled", depends="canceled")


async def test_canceling_a_bridge_cancels_its_child_pipeline(forge):
    project = await ci_project(forge)
    await project.commit("inner:\n  script: echo\n", path="child.yml")
    pipeline = await project.pipeline("child:\n  trigger: {include: child.yml, strategy: depend}\n")

    async def downstream():
        return (await project.bridges(pipeline))["child"]["downstream_pipeline"]

    child = await eventually(downstream)

    async def runs() -> bool:
        return (await project.statuses(pipeline))["child"] == "running"

    await eventually(runs)
    await project.api.post(f"{project.url}/pipelines/{pipeline['id']}/cancel")

    async def is_canceled() -> bool:
        return await project.status(child) == "canceled"

    await eventually(is_canceled)


async def test_a_pipeline_of_another_project_is_started_with_the_rights_of_the_bridges_user(forge):
    here, there, hidden = await ci_project(forge), await ci_project(forge), await ci_project(forge)
    await there.commit(MANUAL_JOB, branch="main")
    await forge.member("projects", there.id, here.developer, Role.MAINTAINER)
    pipeline = await here.pipeline(
        f"good:\n  trigger: {there.path}\nhidden:\n  trigger: {hidden.path}\n"
        f"no branch:\n  trigger: {{project: {there.path}, branch: nowhere}}\n"
    )

    async def are_done() -> bool:
        return set((await here.statuses(pipeline)).values()) <= {"success", "failed"}

    await eventually(are_done)
    assert await here.statuses(pipeline) == {"good": "success", "hidden": "failed", "no branch": "failed"}
    bridges = await here.bridges(pipeline)
    assert bridges["good"]["downstream_pipeline"]["project_id"] == there.id
    assert bridges["good"]["downstream_pipeline"]["source"] == "pipeline"
    assert bridges["hidden"]["downstream_pipeline"] is None
    rows = await forge.database.rows(
        "SELECT failure_reason FROM jobs WHERE pipeline_id = %(id)s AND kind = 'bridge' ORDER BY name",
        id=pipeline["id"],
    )
    assert [row.failure_reason for row in rows] == [
        None, "downstream_bridge_project_not_found", "downstream_pipeline_creation_failed"
    ]  # fmt: skip


async def test_pipelines_that_start_each_other_come_to_an_end(forge):
    project = await ci_project(forge)
    await project.commit(f"again:\n  trigger: {project.path}\n", branch="main")
    await forge.root.post(f"{project.url}/pipeline", {"ref": "main"})
    found = "SELECT count(*) FROM jobs WHERE project_id = %(id)s AND failure_reason = %(reason)s"

    async def is_refused() -> bool:
        reason = "pipeline_loop_detected"
        return bool(await forge.database.value(found, id=project.id, reason=reason))

    await eventually(is_refused)


async def _with_child(forge: Forge) -> tuple[CiProject, dict[str, Any], int]:
    """A project, a pipeline of it and the id of its bridge, which is manual and would wait for a child pipeline."""
    project = await ci_project(forge)
    await project.commit("inner:\n  script: echo\n", path="child.yml")
    pipeline = await project.pipeline(
        "child:\n  when: manual\n  trigger: {include: child.yml, strategy: depend}\n"
    )
    return project, pipeline, (await project.bridges(pipeline))["child"]["id"]


@attrs.frozen
class CanceledMeanwhile(Maker):
    """The bridge is canceled while its pipeline is planned."""

    forge: Forge

    async def make(self, wanted: Wanted) -> int:
        await bring(self.forge, wanted.source_job_id or 0, "canceled")
        return await Maker.make(self, wanted)


async def test_a_bridge_that_is_canceled_while_its_pipeline_is_made_leaves_nothing_running(forge):
    project, pipeline, bridge_id = await _with_child(forge)
    await bring(forge, bridge_id, "pending")
    real = maker(forge.server.app[SERVICES])
    parts = (getattr(real, field.name) for field in attrs.fields(Maker))
    await tasks.start_bridge(CanceledMeanwhile(*parts, forge=forge), bridge_id)
    child = (await project.bridges(pipeline))["child"]["downstream_pipeline"]
    assert await project.statuses(child) == {"inner": "canceled"}


async def test_a_bridge_whose_pipeline_was_removed_does_not_wait_for_ever(forge):
    project, pipeline, bridge_id = await _with_child(forge)
    await project.api.post(f"{project.url}/jobs/{bridge_id}/play")

    async def runs() -> Any:
        bridge = (await project.bridges(pipeline))["child"]
        return bridge["status"] == "running" and bridge["downstream_pipeline"]

    child = await eventually(runs)
    await tasks.follow_forgotten_bridges(forge.database)
    assert (await project.statuses(pipeline))["child"] == "running"
    assert (await forge.root.delete(f"{project.url}/pipelines/{child['id']}")).status == 204
    await tasks.follow_forgotten_bridges(forge.database)
    assert (await project.statuses(pipeline))["child"] == "failed"


async def test_a_bridge_of_who_was_blocked_meanwhile_starts_nothing_elsewhere(forge):
    here, there = await ci_project(forge), await ci_project(forge)
    await there.commit(MANUAL_JOB, branch="main")
    await forge.member("projects", there.id, here.developer, Role.MAINTAINER)
    pipeline = await here.pipeline(f"there:\n  when: manual\n  trigger: {there.path}\n")
    bridge_id = (await here.bridges(pipeline))["there"]["id"]
    await bring(forge, bridge_id, "pending")
    assert (await forge.root.post(f"/users/{here.developer.id}/block")).status == 201
    await tasks.start_bridge(maker(forge.server.app[SERVICES]), bridge_id)
    assert (await forge.root.get(f"{there.url}/pipelines?source=pipeline")).body == []
    reason = await forge.database.value("SELECT failure_reason FROM jobs WHERE id = %(id)s", id=bridge_id)
    assert reason == "insufficient_bridge_permissions"
