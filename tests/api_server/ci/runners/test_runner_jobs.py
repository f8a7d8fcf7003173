"""`GET /runners/:id/jobs`: what a runner has run, for those who look after it."""

import pytest

from api_server.ci.pipelines.states import STATUSES
from api_server.web.routes import Role
from tests.support.ci import CiProject, bring, ci_project
from tests.support.forge import Client, Forge, Person
from tests.support.runner import a_runner

RAN_BY = """
    UPDATE jobs SET runner_id = %(runner_id)s, runner_manager_id = %(manager_id)s WHERE id = %(id)s
"""
MANAGER = """
    INSERT INTO runner_managers (runner_id, system_id, created_at) VALUES (%(runner_id)s, 'machine', %(now)s)
    RETURNING id
"""


async def ran(project: CiProject, runner_id: int, status: str, manager_id: int | None = None) -> int:
    """A job of the project that this runner has had in its hands."""
    job = await project.job()
    await bring(project.forge, job["id"], status)
    await project.forge.execute(RAN_BY, id=job["id"], runner_id=runner_id, manager_id=manager_id)
    return int(job["id"])


async def listed(client: Client, runner_id: int, query: str = "") -> list[int]:
    answer = await client.get(f"/runners/{runner_id}/jobs?{query}", expect=200)
    return [job["id"] for job in answer.body]


async def test_the_jobs_of_a_runner_newest_first_by_status_and_machine(forge: Forge) -> None:
    project = await ci_project(forge)
    runner = (await a_runner(forge, project_id=project.id)).id
    async with forge.database.transaction() as transaction:
        manager = await transaction.value(MANAGER, runner_id=runner)
    done = await ran(project, runner, "success", manager)
    now = await ran(project, runner, "running")
    assert await listed(forge.root, runner) == [now, done]
    assert await listed(forge.root, runner, "order_by=id&sort=asc") == [done, now]
    assert await listed(forge.root, runner, "status=running") == [now]
    assert await listed(forge.root, runner, "system_id=machine") == [done]
    assert await listed(forge.root, runner, "system_id=another") == []
    page = await forge.root.get(f"/runners/{runner}/jobs?per_page=1")
    assert (page.headers["X-Total"], page.headers["X-Next-Page"]) == ("2", "2")


async def test_a_job_is_shown_as_in_its_project_but_with_the_whole_project(forge: Forge) -> None:
    project = await ci_project(forge)
    runner = (await a_runner(forge, project_id=project.id)).id
    job_id = await ran(project, runner, "failed")
    (shown,) = (await forge.root.get(f"/runners/{runner}/jobs")).body
    job = (await forge.root.get(f"{project.url}/jobs/{job_id}")).body
    own = (await forge.root.get(project.url)).body
    keys = (
        "id", "status", "stage", "name", "ref", "tag", "coverage", "allow_failure", "created_at", "started_at",
        "finished_at", "erased_at", "duration", "queued_duration", "user", "commit", "pipeline", "web_url",
        "failure_reason",
    )  # fmt: skip
    named = ("id", "description", "name", "name_with_namespace", "path", "path_with_namespace", "created_at")
    assert shown == {key: job[key] for key in keys} | {"project": {key: own[key] for key in named}}


async def test_who_sees_which_jobs_of_a_project_runner(forge: Forge) -> None:
    """Maintainers of one of its projects, and of those jobs only what is in projects where they are Reporter."""
    first, second, third = [await ci_project(forge) for _ in range(3)]
    runner = (await a_runner(forge, project_id=first.id)).id
    for other in (second, third):
        assert (await forge.root.post(f"{other.url}/runners", {"runner_id": runner})).status == 201
    jobs = [await ran(project, runner, "success") for project in (first, second, third)]
    people = await forge.people(first.id)
    await forge.member("projects", second.id, people["maintainer"], Role.REPORTER)
    await forge.member("projects", third.id, people["maintainer"], Role.GUEST)
    assert await listed(people["maintainer"].api, runner) == [jobs[1], jobs[0]]
    assert await listed(people["owner"].api, runner) == [jobs[0]]
    assert await listed(forge.root, runner) == jobs[::-1]
    for name in ("stranger", "guest", "reporter", "developer"):
        refused = await people[name].api.get(f"/runners/{runner}/jobs")
        assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"}), name


async def test_who_sees_the_jobs_of_group_and_instance_runners(forge: Forge) -> None:
    owner: Person = await forge.user("owner")
    group = await forge.group(owner)
    inside, outside = await ci_project(forge, namespace_id=group["id"]), await ci_project(forge)
    of_group = (await a_runner(forge, group_id=group["id"])).id
    of_instance = (await a_runner(forge)).id
    job = await ran(inside, of_group, "success")
    await ran(outside, of_group, "success")  # it was in the group once
    assert await listed(owner.api, of_group) == [job]
    assert (await owner.api.get(f"/runners/{of_instance}/jobs")).status == 403
    assert await listed(forge.root, of_instance) == []


@pytest.mark.parametrize(
    ("query", "status", "body"),
    [
        ("status=done", 400, {"error": "status does not have a valid value"}),
        ("order_by=name", 400, {"error": "order_by does not have a valid value"}),
        ("sort=up", 400, {"error": "sort does not have a valid value"}),
    ],
)
async def test_refused_parameters(forge: Forge, query: str, status: int, body: dict[str, str]) -> None:
    runner = (await a_runner(forge)).id
    answer = await forge.root.get(f"/runners/{runner}/jobs?{query}")
    assert (answer.status, answer.body) == (status, body)


async def test_every_status_can_be_asked_for(forge: Forge) -> None:
    runner = (await a_runner(forge)).id
    for status in STATUSES:
        assert await listed(forge.root, runner, f"status={status}") == []


async def test_a_runner_that_does_not_exist(forge: Forge) -> None:
    answer = await forge.root.get("/runners/999999999/jobs")
    assert (answer.status, answer.body) == (404, {"message": "404 Runner Not Found"})
