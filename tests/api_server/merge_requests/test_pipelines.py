"""Merge requests and the pipelines of their head: what is shown, and what must have succeeded before a merge."""

import asyncio
from typing import Any

import gitlab
import orjson

from api_server.web.routes import Role
from tests.api_server.merge_requests.conftest import Proposed
from tests.support.ci import ONE_JOB, eventually, happen, run
from tests.support.forge import Forge

ACTIVE = ("created", "waiting_for_resource", "preparing", "waiting_for_callback", "pending", "running")
SET_STATUS = "UPDATE pipelines SET status = %(status)s WHERE id = %(id)s"


async def skipped(proposed: Proposed) -> int:
    """The pipeline that the push has made, which its message skips."""
    project = proposed.project

    async def made() -> Any:
        return (await project.api.get(f"{project.url}/pipelines?ref=topic")).body

    (pipeline,) = await eventually(made)
    assert pipeline["status"] == "skipped"
    return int(pipeline["id"])


async def test_a_merge_request_shows_the_newest_pipeline_of_its_head(proposed: Proposed) -> None:
    """As the pipeline's own endpoint shows it; not the one of an older head."""
    project = proposed.project
    await skipped(proposed)
    await project.pipeline(ONE_JOB)
    newest = await project.pipeline(ONE_JOB)
    own = (await project.api.get(f"{project.url}/pipelines/{newest['id']}")).body
    assert (await proposed.shown())["head_pipeline"] == own
    await project.commit("changed", path="other.txt")

    async def followed() -> Any:
        shown = await proposed.shown()
        return shown if shown["head_pipeline"] else None

    shown = await eventually(followed)
    assert shown["head_pipeline"]["sha"] == shown["sha"] != newest["sha"]


async def test_who_may_not_see_pipelines_is_shown_none(forge: Forge, proposed: Proposed) -> None:
    project = proposed.project
    await project.pipeline(ONE_JOB)
    await forge.root.put(project.url, {"visibility": "public", "public_jobs": False})
    guest, reporter = await forge.user(), await forge.user()
    await forge.member("projects", project.id, guest, Role.GUEST)
    await forge.member("projects", project.id, reporter, Role.REPORTER)
    assert (await guest.api.get(proposed.url)).body["head_pipeline"] is None
    assert (await guest.api.get(f"{proposed.url}/pipelines")).status == 403
    assert (await reporter.api.get(proposed.url)).body["head_pipeline"]["ref"] == "topic"
    assert len((await reporter.api.get(f"{proposed.url}/pipelines")).body) >= 1


async def test_lists_leave_pipelines_out(proposed: Proposed) -> None:
    project = proposed.project
    await project.pipeline(ONE_JOB)
    (listed,) = (await project.api.get(f"{project.url}/merge_requests")).body
    shown = await proposed.shown()
    assert shown["head_pipeline"]["id"] == shown["pipeline"]["id"]
    assert {"head_pipeline", "pipeline"}.isdisjoint(listed)


async def test_the_pipelines_of_a_merge_request_are_those_of_its_commits(proposed: Proposed) -> None:
    """Newest first, pipelines of other branches left out."""
    project = proposed.project
    first = await skipped(proposed)
    second = await project.pipeline(ONE_JOB)
    await project.commit("changed", path="other.txt")
    third = await project.pipeline(ONE_JOB)
    await project.pipeline(ONE_JOB, branch="elsewhere")
    answer = await project.api.get(f"{proposed.url}/pipelines?per_page=2")
    assert (answer.status, answer.headers["X-Total"]) == (200, "4")
    assert answer.body[0] == (await project.api.get(f"{project.url}/pipelines?sha={third['sha']}")).body[0]
    listed = (await project.api.get(f"{proposed.url}/pipelines")).body
    found = [one["id"] for one in listed]
    assert found == sorted(found, reverse=True)
    assert {first, second["id"], third["id"]} < set(found)
    assert {one["ref"] for one in listed} == {"topic"}
    gone = await project.api.get(f"{project.url}/merge_requests/99/pipelines")
    assert (gone.status, gone.body) == (404, {"message": "404 Not found"})


async def test_without_a_successful_pipeline_a_project_that_demands_one_merges_nothing(
    forge: Forge, proposed: Proposed
) -> None:
    project = proposed.project
    await skipped(proposed)
    assert (await proposed.shown())["detailed_merge_status"] == "mergeable"
    await proposed.demand()
    assert (await proposed.shown())["detailed_merge_status"] == "ci_must_pass"
    pipeline = await project.pipeline(ONE_JOB)
    job = (await project.jobs(pipeline))["build"]["id"]
    for step, status in (
        (None, "ci_still_running"),
        ("run", "ci_still_running"),
        ("drop", "ci_must_pass"),
    ):
        if step == "run":
            await run(forge, job)
        elif step == "drop":
            await happen(forge, job, "drop", failure_reason="script_failure")
        assert (await proposed.shown())["detailed_merge_status"] == status, step
        refused = await forge.root.put(f"{proposed.url}/merge")
        assert (refused.status, refused.body) == (
            405, {"message": "405 Method Not Allowed", "detailed_merge_status": status}
        )  # fmt: skip
    again = (await project.api.post(f"{project.url}/jobs/{job}/retry")).body["id"]
    await run(forge, again)
    await happen(forge, again, "success")
    assert (await proposed.shown())["detailed_merge_status"] == "mergeable"
    assert (await forge.root.put(f"{proposed.url}/merge")).body["state"] == "merged"


async def test_each_status_of_a_pipeline_blocks_or_lets_merge(forge: Forge, proposed: Proposed) -> None:
    pipeline = await proposed.project.pipeline(ONE_JOB)
    await proposed.demand()
    for status in (*ACTIVE, "success", "failed", "canceling", "canceled", "skipped", "manual", "scheduled"):
        await forge.execute(SET_STATUS, id=pipeline["id"], status=status)
        expected = (
            "mergeable" if status == "success" else "ci_still_running" if status in ACTIVE else "ci_must_pass"
        )
        assert (await proposed.shown())["detailed_merge_status"] == expected, status


async def test_a_skipped_pipeline_will_do_where_the_project_says_so(forge: Forge, proposed: Proposed) -> None:
    await skipped(proposed)
    await proposed.demand(allow_merge_on_skipped_pipeline=True)
    assert (await forge.root.get(proposed.project.url)).body["allow_merge_on_skipped_pipeline"] is True
    assert (await proposed.shown())["detailed_merge_status"] == "mergeable"


async def test_python_gitlab_lists_the_pipelines_of_a_merge_request(forge: Forge, proposed: Proposed) -> None:
    pipeline = await proposed.project.pipeline(ONE_JOB)

    def walk() -> None:
        client = gitlab.Gitlab(forge.base, private_token=proposed.project.developer.token)
        found = client.projects.get(proposed.project.id).mergerequests.get(proposed.iid)
        assert found.head_pipeline["id"] == pipeline["id"]
        assert pipeline["id"] in [one.id for one in found.pipelines.list(get_all=True)]

    await asyncio.to_thread(walk)


async def test_deliveries_name_the_pipeline_of_the_head(forge: Forge, proposed: Proposed) -> None:
    project = proposed.project
    pipeline = await project.pipeline(ONE_JOB)
    check = {"name": "QA", "external_url": "https://qa.example.org"}
    assert (await forge.root.post(f"{project.url}/external_status_checks", check)).status == 201
    assert (await forge.root.put(proposed.url, {"title": "Another"})).status == 200
    sent = await forge.database.value(
        "SELECT deliveries.body FROM status_check_deliveries deliveries"
        " JOIN merge_requests m ON m.id = deliveries.merge_request_id"
        " WHERE m.project_id = %(id)s ORDER BY deliveries.id DESC LIMIT 1",
        id=project.id,
    )
    assert orjson.loads(sent)["object_attributes"]["head_pipeline_id"] == pipeline["id"]
