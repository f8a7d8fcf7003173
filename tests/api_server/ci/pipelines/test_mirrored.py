"""Bridges that have the status of a pipeline of another project (`needs: {pipeline: group/project}`)."""

from typing import Any

import attrs
import pytest

from api_server.ci.pipelines import tasks
from api_server.web.routes import Role
from tests.support.ci import MANUAL_JOB, ONE_JOB, CiProject, ci_project, happen, run
from tests.support.forge import Forge
from tests.support.waiting import until


@attrs.frozen
class Scene:
    """A project whose bridge mirrors the newest pipeline of the default branch of another project."""

    here: CiProject
    there: CiProject

    async def upstream(self, text: str = ONE_JOB, **values: Any) -> dict[str, Any]:
        return await self.there.pipeline(text, branch="main", by=self.there.forge.root, **values)

    async def mirror(self, path: str | None = None) -> dict[str, Any]:
        text = f"status: {{needs: {{pipeline: {path or self.there.path}}}}}\nafter: {{stage: deploy, script: x}}\n"
        return await self.here.pipeline(text)

    async def becomes(self, pipeline: dict[str, Any], status: str) -> dict[str, Any]:
        """Wait until the bridge has that status. Return the bridge, with the reason of its failure."""

        async def reached() -> bool:
            return (await self.here.statuses(pipeline))["status"] == status

        await until(reached)
        bridge = (await self.here.bridges(pipeline))["status"]
        reason = await self.here.forge.database.value(
            "SELECT failure_reason FROM jobs WHERE id = %(id)s", id=bridge["id"]
        )
        return bridge | {"failure_reason": reason}


@pytest.fixture
async def scene(forge: Forge) -> Scene:
    here, there = await ci_project(forge), await ci_project(forge)
    await forge.member("projects", there.id, here.developer, Role.REPORTER)
    return Scene(here, there)


async def test_the_status_of_the_newest_pipeline_of_the_default_branch_is_taken_over(
    forge: Forge, scene: Scene
) -> None:
    await scene.upstream()
    newest = await scene.upstream()
    await scene.there.pipeline()  # a pipeline of another branch
    pipeline = await scene.mirror()
    bridge = await scene.becomes(pipeline, "running")
    assert bridge["downstream_pipeline"] is None
    job = (await scene.there.jobs(newest))["build"]["id"]
    await run(forge, job)
    await happen(forge, job, "drop", failure_reason="script_failure")
    failed = await scene.becomes(pipeline, "failed")
    assert (failed["failure_reason"], await scene.here.status(pipeline)) == ("unknown_failure", "failed")
    assert (await scene.here.statuses(pipeline))["after"] == "skipped"
    await forge.root.post(f"{scene.there.url}/pipelines/{newest['id']}/retry", expect=201)
    again = (await scene.there.jobs(newest))["build"]["id"]
    await scene.becomes(pipeline, "running")
    await scene.upstream()  # a newer one changes nothing
    await run(forge, again)
    await happen(forge, again, "success")
    await scene.becomes(pipeline, "success")
    assert (await scene.here.statuses(pipeline))["after"] == "pending"
    await forge.root.post(f"{scene.there.url}/jobs/{again}/retry", expect=201)
    await scene.becomes(pipeline, "running")


async def test_a_bridge_that_was_canceled_with_its_pipeline_is_not_run_again_with_it(
    forge: Forge, scene: Scene
) -> None:
    upstream = await scene.upstream()
    pipeline = await scene.mirror()
    await scene.becomes(pipeline, "running")
    await forge.root.post(f"{scene.there.url}/pipelines/{upstream['id']}/cancel", expect=200)
    await scene.becomes(pipeline, "canceled")
    await forge.root.post(f"{scene.there.url}/pipelines/{upstream['id']}/retry", expect=201)
    await tasks.follow_mirrored(forge.database, upstream["id"])
    bridge = await scene.becomes(pipeline, "canceled")
    await scene.here.api.post(f"{scene.here.url}/jobs/{bridge['id']}/retry", expect=201)
    await scene.becomes(pipeline, "running")


@pytest.mark.parametrize(
    ("text", "event", "expected"),
    [
        (MANUAL_JOB, None, "manual"),
        (ONE_JOB, "cancel", "canceled"),
        ("build: {script: x, when: on_failure}", None, "skipped"),
    ],
)
async def test_other_statuses(forge: Forge, scene: Scene, text: str, event: Any, expected: str) -> None:
    upstream = await scene.upstream(text)
    pipeline = await scene.mirror()
    if event is not None:
        await scene.becomes(pipeline, "running")
        await happen(forge, (await scene.there.jobs(upstream))["build"]["id"], event)
    await scene.becomes(pipeline, expected)


async def test_a_pipeline_that_is_over_is_mirrored_at_once_and_anew_by_a_retry(
    forge: Forge, scene: Scene
) -> None:
    first = await scene.upstream()
    await happen(forge, (await scene.there.jobs(first))["build"]["id"], "success")
    pipeline = await scene.mirror()
    bridge = await scene.becomes(pipeline, "success")
    assert (await scene.here.statuses(pipeline))["after"] == "pending"
    await scene.upstream()
    await scene.here.api.post(f"{scene.here.url}/jobs/{bridge['id']}/retry", expect=201)
    await scene.becomes(pipeline, "running")


async def test_without_a_pipeline_the_bridge_is_skipped(scene: Scene) -> None:
    await scene.there.pipeline()
    bridge = await scene.becomes(await scene.mirror(), "skipped")
    assert bridge["started_at"] is None


@pytest.mark.parametrize(
    ("visibility", "role", "public_jobs", "outcome"),
    [
        ("private", None, True, "upstream_bridge_project_not_found"),
        ("internal", None, True, "running"),
        ("public", None, True, "running"),
        ("public", None, False, "insufficient_upstream_permissions"),
        ("private", Role.GUEST, False, "insufficient_upstream_permissions"),
        ("private", Role.REPORTER, False, "running"),
    ],
)
async def test_who_may_not_read_the_pipeline_is_told_no_more_than_that(
    forge: Forge, visibility: str, role: Role | None, public_jobs: bool, outcome: str
) -> None:
    here = await ci_project(forge)
    there = await ci_project(forge, visibility=visibility, public_jobs=public_jobs)
    if role is not None:
        await forge.member("projects", there.id, here.developer, role)
    scene = Scene(here, there)
    await scene.upstream()
    pipeline = await scene.mirror()
    bridge = await scene.becomes(pipeline, outcome if outcome == "running" else "failed")
    assert (bridge["failure_reason"] or "running") == outcome


async def test_a_project_that_is_not_there(scene: Scene) -> None:
    bridge = await scene.becomes(await scene.mirror("no/where"), "failed")
    assert bridge["failure_reason"] == "upstream_bridge_project_not_found"


async def test_pipelines_do_not_wait_for_each_other(forge: Forge, scene: Scene) -> None:
    """A bridge may mirror neither its own project, nor a pipeline that mirrors its own one."""
    text = "status: {needs: {pipeline: %s}}\nother: {script: x, when: manual}\n"
    own = await scene.there.pipeline(text % scene.there.path, branch="main", by=forge.root)
    of_own = Scene(scene.there, scene.there)
    assert (await of_own.becomes(own, "failed"))["failure_reason"] == "pipeline_loop_detected"

    await forge.member("projects", scene.here.id, scene.there.developer, Role.REPORTER)
    first = await scene.here.pipeline(text % scene.there.path, branch="main", by=forge.root)
    await scene.becomes(first, "failed")  # as the pipeline of the other project has
    there = await scene.there.pipeline(text % scene.here.path, branch="main", by=forge.root)
    assert (await of_own.becomes(there, "failed"))["failure_reason"] == "unknown_failure"
    bridge = (await scene.here.bridges(first))["status"]
    await forge.root.post(f"{scene.here.url}/jobs/{bridge['id']}/retry", expect=201)
    assert (await scene.becomes(first, "failed"))["failure_reason"] == "pipeline_loop_detected"


async def test_a_bridge_whose_pipeline_was_removed_fails(forge: Forge, scene: Scene) -> None:
    upstream = await scene.upstream()
    pipeline = await scene.mirror()
    await scene.becomes(pipeline, "running")
    await tasks.follow_forgotten_bridges(forge.database)
    await scene.becomes(pipeline, "running")
    await forge.root.delete(f"{scene.there.url}/pipelines/{upstream['id']}", expect=204)
    await tasks.follow_forgotten_bridges(forge.database)
    assert (await scene.becomes(pipeline, "failed"))["failure_reason"] == "unknown_failure"


async def test_canceling_a_bridge_leaves_the_other_pipeline_alone(forge: Forge, scene: Scene) -> None:
    upstream = await scene.upstream()
    pipeline = await scene.mirror()
    await scene.becomes(pipeline, "running")
    await scene.here.api.post(f"{scene.here.url}/pipelines/{pipeline['id']}/cancel", expect=200)
    await scene.becomes(pipeline, "canceled")
    await happen(forge, (await scene.there.jobs(upstream))["build"]["id"], "success")
    assert await scene.there.status(upstream) == "success"
    await scene.becomes(pipeline, "canceled")
