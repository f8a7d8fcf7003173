"""Pipelines that are canceled by themselves: by a newer commit, and by a job that has failed."""

from typing import Any

import pytest

from api_server.ci.pipelines import tasks
from api_server.web.context import SERVICES
from tests.support.ci import CiProject, bring, ci_project, happen, run
from tests.support.forge import Forge, new_name

TWO = "first: {script: echo, interruptible: true}\nlast: {script: echo}\n"


async def pushed(project: CiProject, text: str, message: str) -> dict[str, Any]:
    """The pipeline of a push."""
    await project.commit(text, message=message)
    return dict((await project.api.get(f"{project.url}/pipelines?source=push")).body[0])


@pytest.mark.parametrize(
    ("on_new_commit", "started", "left"),
    [
        ("conservative", None, {"first": "canceled", "last": "canceled"}),
        ("conservative", "first", {"first": "canceled", "last": "canceled"}),
        ("conservative", "last", {"first": "pending", "last": "running"}),
        ("interruptible", "first", {"first": "canceled", "last": "pending"}),
        ("interruptible", "last", {"first": "canceled", "last": "running"}),
        ("none", None, {"first": "pending", "last": "pending"}),
    ],
)
async def test_a_newer_commit_cancels_what_the_older_ones_file_lets_it(
    forge: Forge, on_new_commit: str, started: str | None, left: dict[str, str]
) -> None:
    project = await ci_project(forge)
    text = f"workflow: {{auto_cancel: {{on_new_commit: {on_new_commit}}}}}\n{TWO}"
    older = await pushed(project, text, "One")
    asked_for = await project.api.post(f"{project.url}/pipeline", {"ref": "topic"})
    if started:
        await run(forge, (await project.jobs(older))[started]["id"])
    newer = await pushed(project, f"{text}#\n", "Two")
    assert await project.statuses(older) == left
    assert await project.statuses(newer) == {"first": "pending", "last": "pending"}
    assert await project.statuses(asked_for.body) == {"first": "pending", "last": "pending"}


async def test_where_a_project_cancels_nothing_its_files_change_nothing_of_that(forge: Forge) -> None:
    project = await ci_project(forge, auto_cancel_pending_pipelines="disabled")
    older = await pushed(project, TWO, "One")
    await pushed(project, f"{TWO}#\n", "Two")
    assert await project.statuses(older) == {"first": "pending", "last": "pending"}


async def test_the_newest_commit_keeps_its_pipeline_when_an_older_ones_is_made_later(forge: Forge) -> None:
    """They are planned at the same time, and one may take longer."""
    project = await ci_project(forge)
    older = await pushed(project, TWO, "One")
    newer = await pushed(project, f"{TWO}#\n", "Two")
    late = {"ref": "topic", "sha": older["sha"], "before_sha": "0" * 40, "user_id": project.developer.id}
    await tasks.create_pipeline(
        forge.server.app[SERVICES], project_id=project.id, origin=new_name("late"), **late
    )
    (made, second, first) = (await project.api.get(f"{project.url}/pipelines?source=push")).body
    assert (made["sha"], second["id"], first["id"]) == (older["sha"], newer["id"], older["id"])
    assert await project.status(newer) == "pending"


async def test_a_commit_without_a_pipeline_cancels_nothing(forge: Forge) -> None:
    project = await ci_project(forge)
    older = await pushed(project, TWO, "One")
    await project.commit("1", path="else.txt")  # skipped
    assert await project.status(older) == "pending"
    other = await pushed(project, "last: {script: echo, only: [tags]}\n", "Two")
    assert (other["status"], await project.status(older)) == ("skipped", "pending")


RETRIED = """
workflow: {auto_cancel: {on_job_failure: all}}
one: {script: echo, retry: 1}
two: {script: echo}
three: {script: echo}
may: {script: echo, allow_failure: true}
"""


async def test_a_job_that_fails_for_good_cancels_the_others(forge: Forge) -> None:
    """Not one that may fail, and not one that is tried again."""
    project = await ci_project(forge)
    pipeline = await project.pipeline(RETRIED)
    jobs = await project.jobs(pipeline)
    for name in ("one", "two", "may"):
        await run(forge, jobs[name]["id"])
    await bring(forge, jobs["three"]["id"], "success")
    for name in ("may", "one"):
        await happen(forge, jobs[name]["id"], "drop", failure_reason="script_failure")
    running = {"one": "pending", "two": "running", "three": "success", "may": "failed"}
    assert await project.statuses(pipeline) == running
    again = (await project.jobs(pipeline))["one"]["id"]
    await run(forge, again)
    await happen(forge, again, "drop", failure_reason="script_failure")
    assert await project.statuses(pipeline) == running | {"one": "failed", "two": "canceled"}
    assert await project.status(pipeline) == "failed"


async def test_a_failure_that_nothing_is_said_of_cancels_nothing(forge: Forge) -> None:
    project = await ci_project(forge)
    pipeline = await project.pipeline(TWO)
    job = (await project.jobs(pipeline))["first"]["id"]
    await run(forge, job)
    await happen(forge, job, "drop", failure_reason="script_failure")
    assert await project.statuses(pipeline) == {"first": "failed", "last": "pending"}
