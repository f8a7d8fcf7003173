"""Runners are registered, managed, changed and removed, and show the jobs that they have run."""

import asyncio
from collections.abc import Awaitable, Callable

import gitlab
import pytest

from api_server.ci.pipelines.states import STATUSES
from api_server.ci.runners.job_handlers import PENDING_JOBS
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.support.ci import CiProject, bring, ci_project
from tests.support.forge import Answer, Client, Forge, Person
from tests.support.runner import INFO, Runner, a_runner, until_waiting
from tests.support.waiting import until_somebody_waits


async def test_creating_shows_the_token_once(forge: Forge, project: CiProject) -> None:
    note = "mine" * 256  # the longest note that GitLab's documentation allows
    wanted = {
        "runner_type": "project_type", "project_id": project.id, "description": "one", "tag_list": "b, a,,b",
        "locked": True, "maximum_timeout": 1200, "maintenance_note": note, "access_level": "ref_protected",
    }  # fmt: skip
    made = await forge.root.post("/user/runners", wanted)
    assert (made.status, list(made.body)) == (201, ["id", "token", "token_expires_at"])
    assert made.body["token"].startswith("glrt-")
    shown = (await forge.root.get(f"/runners/{made.body['id']}")).body
    created_at, created_by, projects = shown.pop("created_at"), shown.pop("created_by"), shown.pop("projects")
    assert shown == {
        "id": made.body["id"], "description": "one", "ip_address": None, "active": True, "paused": False,
        "is_shared": False, "runner_type": "project_type", "name": None, "online": False,
        "status": "never_contacted", "tag_list": ["a", "b"], "run_untagged": True, "locked": True,
        "maximum_timeout": 1200, "access_level": "ref_protected", "maintenance_note": note, "version": None,
        "revision": None, "platform": None, "architecture": None, "contacted_at": None, "groups": [],
    }  # fmt: skip
    assert created_at.endswith("Z")
    assert created_by["username"] == "root"
    assert [one["id"] for one in projects] == [project.id]


@pytest.mark.parametrize(
    ("values", "body"),
    [
        ({}, {"error": "runner_type is missing"}),
        ({"runner_type": "project_type"}, {"error": "project_id is missing"}),
        ({"runner_type": "group_type"}, {"error": "group_id is missing"}),
        (
            {"runner_type": "instance_type", "run_untagged": False},
            {"message": {"tags_list": ["can not be empty when runner is not allowed to pick untagged jobs"]}},
        ),
        (
            {"runner_type": "instance_type", "maximum_timeout": 5},
            {"message": {"maximum_timeout": ["needs to be at least 10 minutes"]}},
        ),
        (
            {"runner_type": "instance_type", "maximum_timeout": 2**31},
            {"error": "maximum_timeout is invalid"},
        ),
    ],
)
async def test_refusals_of_creation(forge: Forge, values: dict, body: dict) -> None:
    answer = await forge.root.post("/user/runners", values)
    assert (answer.status, answer.body) == (400, body)


async def test_who_may_create_and_look_after_runners(forge: Forge, project: CiProject) -> None:
    people = await forge.people(project.id)
    runner = await a_runner(forge, project_id=project.id)
    creating, showing, updating, listing = {}, {}, {}, {}
    for name, person in people.items():
        wanted = {"runner_type": "project_type", "project_id": project.id}
        creating[name] = (await person.api.post("/user/runners", wanted)).status
        showing[name] = (await person.api.get(f"/runners/{runner.id}")).status
        updating[name] = (await person.api.put(f"/runners/{runner.id}", {"description": name})).status
        listing[name] = (await person.api.get(f"{project.url}/runners")).status
    refused = dict.fromkeys(("guest", "reporter", "developer"), 403)
    assert creating == {"stranger": 404, **refused, "maintainer": 201, "owner": 201}
    assert showing == updating == {"stranger": 403, **refused, "maintainer": 200, "owner": 200}
    assert listing == {"stranger": 404, **refused, "maintainer": 200, "owner": 200}
    instance = {"runner_type": "instance_type"}
    assert (await people["owner"].api.post("/user/runners", instance)).status == 403
    assert (await people["owner"].api.get("/runners/all")).status == 403
    shared = await a_runner(forge)
    assert (await people["guest"].api.get(f"/runners/{shared.id}")).status == 200
    assert (await people["guest"].api.delete(f"/runners/{shared.id}")).status == 403
    assert (await forge.root.get("/runners/999999999")).body == {"message": "404 Runner Not Found"}


async def test_pausing_and_changing(forge: Forge, project: CiProject) -> None:
    runner = await a_runner(forge, project_id=project.id, maximum_timeout=900)
    await project.pipeline()
    paused = await forge.root.put(f"/runners/{runner.id}", {"paused": True, "tag_list": ["x"]})
    assert (paused.body["active"], paused.body["paused"], paused.body["tag_list"]) == (False, True, ["x"])
    assert (await runner.poll()).status == 204
    changed = await forge.root.put(f"/runners/{runner.id}", {"paused": False, "maximum_timeout": None})
    assert (changed.body["active"], changed.body["maximum_timeout"]) == (True, None)
    assert (await runner.poll()).status == 201
    refused = await forge.root.put(f"/runners/{runner.id}", {"tag_list": [], "run_untagged": False})
    assert refused.status == 400
    for timeout in (2**31, -(2**31)):
        refused = await forge.root.put(f"/runners/{runner.id}", {"maximum_timeout": timeout})
        assert (refused.status, refused.body) == (400, {"error": "maximum_timeout is invalid"})
    assert (await forge.root.get(f"/runners/{runner.id}")).body["tag_list"] == ["x"]


async def test_lists(forge: Forge, project: CiProject) -> None:
    group = await forge.group()
    inside = await ci_project(forge, namespace_id=group["id"])
    shared, of_group = (
        await a_runner(forge, tag_list=["only-here"]),
        await a_runner(forge, group_id=group["id"]),
    )
    own, other = await a_runner(forge, project_id=inside.id), await a_runner(forge, project_id=project.id)
    maintainer = await forge.new_member(inside.id, Role.MAINTAINER)

    async def ids(path: str) -> set[int]:
        answer = await maintainer.api.get(path, expect=200)
        return {one["id"] for one in answer.body} & {shared.id, of_group.id, own.id, other.id}

    assert await ids("/runners?per_page=100") == {own.id}
    assert await ids(f"{inside.url}/runners?per_page=100") == {shared.id, of_group.id, own.id}
    assert await ids(f"{inside.url}/runners?type=group_type") == {of_group.id}
    assert await ids(f"{inside.url}/runners?tag_list=only-here") == {shared.id}
    await own.poll()
    assert await ids(f"{inside.url}/runners?status=online") == {own.id}
    everything = await forge.root.get("/runners/all?per_page=100")
    assert {shared.id, of_group.id, own.id, other.id} <= {one["id"] for one in everything.body}


async def test_a_runner_serves_further_projects_unless_locked(forge: Forge, project: CiProject) -> None:
    second = await ci_project(forge)
    runner, locked = (
        await a_runner(forge, project_id=project.id),
        await a_runner(forge, project_id=project.id, locked=True),
    )
    maintainer = await forge.user()
    for one in (project, second):
        await forge.member("projects", one.id, maintainer, Role.MAINTAINER)
    url = f"{second.url}/runners"
    assert (await maintainer.api.post(url, {"runner_id": locked.id})).status == 403
    assert (await maintainer.api.post(url, {"runner_id": runner.id})).status == 201
    assert (await maintainer.api.post(url, {"runner_id": runner.id})).status == 400
    await second.pipeline()
    assert (await runner.poll()).status == 201
    assert (await maintainer.api.delete(f"{url}/{runner.id}")).status == 204
    assert (await maintainer.api.delete(f"{url}/{runner.id}")).status == 404
    assert (await maintainer.api.delete(f"{project.url}/runners/{runner.id}")).status == 403


async def test_registration_tokens(forge: Forge, project: CiProject) -> None:
    group = await forge.group()
    for path, kind in (
        ("/runners", "instance_type"),
        (f"/groups/{group['id']}/runners", "group_type"),
        (f"{project.url}/runners", "project_type"),
    ):
        first = (await forge.root.post(f"{path}/reset_registration_token")).body["token"]
        token = (await forge.root.post(f"{path}/reset_registration_token")).body["token"]
        assert (await forge.anonymous.post("/runners", {"token": first})).status == 403
        # as gitlab-runner.py --register sends it: a form with a repeated list name without brackets
        made = await forge.anonymous.post(
            "/runners", data=f"token={token}&description=d&run_untagged=False&tag_list=t1",
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )  # fmt: skip
        assert made.status == 201, made
        assert (await forge.root.get(f"/runners/{made.body['id']}")).body["runner_type"] == kind
        assert (await forge.anonymous.post("/runners/verify", {"token": made.body["token"]})).status == 200


async def test_verify_and_unregister(forge: Forge, project: CiProject) -> None:
    runner = await a_runner(forge, project_id=project.id)
    body = {"token": runner.token, "system_id": "s_1", "info": INFO}
    verified = await forge.anonymous.post("/runners/verify", body)
    assert (verified.status, verified.body) == (
        200, {"id": runner.id, "token": runner.token, "token_expires_at": None},
    )  # fmt: skip
    (machine,) = (await forge.root.get(f"/runners/{runner.id}/managers")).body
    assert (machine["system_id"], machine["platform"], machine["status"]) == ("s_1", "linux", "online")
    gone = {"token": runner.token, "system_id": "s_1"}
    assert (await forge.anonymous.delete("/runners/managers", json=gone)).status == 204
    assert (await forge.anonymous.delete("/runners/managers", json=gone)).status == 404
    assert (await forge.anonymous.delete("/runners", json={"token": runner.token})).status == 204
    assert (await forge.anonymous.post("/runners/verify", {"token": runner.token})).status == 403
    assert (await forge.anonymous.delete("/runners", json={"token": runner.token})).status == 403


async def test_a_reset_token_replaces_the_old_one(forge: Forge, project: CiProject) -> None:
    runner = await a_runner(forge, project_id=project.id)
    second = (await forge.root.post(f"/runners/{runner.id}/reset_authentication_token")).body["token"]
    assert (await runner.poll()).status == 403
    third = await forge.anonymous.post("/runners/reset_authentication_token", {"token": second}, expect=201)
    assert (await forge.anonymous.post("/runners/verify", {"token": third.body["token"]})).status == 200
    assert (await forge.anonymous.post("/runners/verify", {"token": second})).status == 403


async def test_removing_a_runner_leaves_its_jobs(forge: Forge, project: CiProject) -> None:
    runner = await a_runner(forge, project_id=project.id)
    await project.pipeline()
    job = await runner.job()
    assert (await forge.root.delete(f"/runners/{runner.id}")).status == 204
    await job.finish()
    shown = (await project.api.get(f"{project.url}/jobs/{job.id}")).body
    assert (shown["status"], shown["runner"]) == ("success", None)


async def test_python_gitlab(forge: Forge, project: CiProject) -> None:
    client = gitlab.Gitlab(forge.base, private_token=forge.root.token)

    def use() -> None:
        made = client.user.runners.create(
            {"runner_type": "project_type", "project_id": project.id, "tag_list": ["a", "b"]}
        )
        client.runners.verify(made.token)
        runner = client.runners.get(made.id)
        assert runner.tag_list == ["a", "b"]
        runner.description = "changed"
        runner.save()
        assert made.id in [one.id for one in client.projects.get(project.id).runners.list(get_all=True)]
        assert made.id in [one.id for one in client.runners_all.list(get_all=True)]
        runner.delete()

    await asyncio.to_thread(lambda: (client.auth(), use()))


EVENTS = """
    SELECT author_id, event_type FROM audit_events
    WHERE entity_type = 'Project' AND entity_id = %(id)s AND target_type = 'Ci::Runner' ORDER BY id
"""


async def test_the_audit_trail_tells_what_happens_to_runners(forge: Forge, project: CiProject) -> None:
    second = await ci_project(forge)
    runner = await a_runner(forge, project_id=project.id)
    await forge.root.put(f"/runners/{runner.id}", {"paused": True, "description": "d"})
    await forge.root.post(f"/runners/{runner.id}/reset_authentication_token")
    await forge.root.post(f"{second.url}/runners", {"runner_id": runner.id})
    await forge.root.delete(f"{second.url}/runners/{runner.id}")
    await forge.root.delete(f"/runners/{runner.id}")
    assert [row.event_type for row in await forge.database.rows(EVENTS, id=project.id)] == [
        "runner_registered", "runner_updated", "runner_updated", "runner_token_reset",
        "runner_assigned_to_project", "runner_unassigned_from_project", "runner_unregistered",
    ]  # fmt: skip


async def test_a_runner_that_registers_and_unregisters_itself_is_the_author(
    forge: Forge, project: CiProject
) -> None:
    token = (await forge.root.post(f"{project.url}/runners/reset_registration_token")).body["token"]
    own = (await forge.anonymous.post("/runners", {"token": token})).body["token"]
    await forge.anonymous.delete("/runners", json={"token": own})
    told = [tuple(row) for row in await forge.database.rows(EVENTS, id=project.id)]
    assert told[-2:] == [(-1, "runner_registered"), (-1, "runner_unregistered")]


REMOVE = "DELETE FROM runners WHERE id = %(id)s"
EVENTS_OF_A_RUNNER = (
    "SELECT count(*) FROM audit_events WHERE event_type LIKE 'runner%%' AND target_id = %(id)s"
)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "", {"description": "another one"}),
        ("DELETE", "", None),
        ("POST", "/reset_authentication_token", None),
    ],
)
async def test_a_change_that_comes_too_late(
    forge: Forge, method: str, path: str, body: dict[str, str] | None
) -> None:
    runner = await a_runner(forge)
    assert await forge.database.value(EVENTS_OF_A_RUNNER, id=runner.id) == 1
    async with forge.database.transaction() as transaction:
        await transaction.run(REMOVE, id=runner.id)
        late = asyncio.create_task(forge.root.request(method, f"/runners/{runner.id}{path}", json=body))
        await until_somebody_waits(forge.database)
    answer = await late
    assert (answer.status, answer.body) == (404, {"message": "404 Not found"})
    assert await forge.database.value(EVENTS_OF_A_RUNNER, id=runner.id) == 1


FORBIDDEN = (403, {"message": "403 Forbidden"})
CHANGES: dict[str, tuple[Callable[[Client, Runner], Awaitable[Answer]], tuple[int, object]]] = {
    "token reset": (
        lambda root, runner: root.post(f"/runners/{runner.id}/reset_authentication_token"),
        FORBIDDEN,
    ),
    "token reset by itself": (
        lambda root, runner: root.post("/runners/reset_authentication_token", {"token": runner.token}),
        FORBIDDEN,
    ),
    "removed": (lambda root, runner: root.delete(f"/runners/{runner.id}"), FORBIDDEN),
    "paused": (lambda root, runner: root.put(f"/runners/{runner.id}", {"paused": True}), (204, "")),
    "other tags": (
        lambda root, runner: root.put(
            f"/runners/{runner.id}", {"tag_list": ["other"], "run_untagged": False}
        ),
        (204, ""),
    ),
    "protected refs only": (
        lambda root, runner: root.put(f"/runners/{runner.id}", {"access_level": "ref_protected"}),
        (204, ""),
    ),
}


async def test_a_runner_that_has_changed_while_it_waited_gets_no_job(
    forge: Forge, project: CiProject
) -> None:
    """The job goes to a runner that has not changed and waits behind the others."""
    runners = [await a_runner(forge, project_id=project.id) for _ in CHANGES]
    polls = [asyncio.create_task(runner.poll(last_update="x")) for runner in runners]
    await until_waiting(forge, *runners)
    for runner, (change, _) in zip(runners, CHANGES.values(), strict=True):
        assert (await change(forge.root, runner)).status in (200, 201, 204)
    last = await a_runner(forge, project_id=project.id)
    unchanged = asyncio.create_task(last.poll(last_update="x"))
    await until_waiting(forge, last)
    await project.pipeline()
    assert (await unchanged).status == 201
    with forge.server.app[SERVICES][PENDING_JOBS].emptied():
        answers = [(answer.status, answer.body) for answer in await asyncio.gather(*polls)]
    assert dict(zip(CHANGES, answers, strict=True)) == {name: told for name, (_, told) in CHANGES.items()}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runners SET token_digest = '' WHERE id = %(id)s",
        "DELETE FROM runners WHERE id = %(id)s",
    ],
)
async def test_whoever_is_changing_a_runner_is_waited_for(
    forge: Forge, project: CiProject, statement: str
) -> None:
    runner = await a_runner(forge, project_id=project.id)
    await runner.poll()  # so that the server has heard of it
    await project.pipeline()
    async with forge.database.transaction() as transaction:
        await transaction.run(statement, id=runner.id)
        poll = asyncio.create_task(runner.poll())
        await until_somebody_waits(forge.database)
    answer = await poll
    assert (answer.status, answer.body) == FORBIDDEN


async def test_a_token_is_replaced_once(forge: Forge, project: CiProject) -> None:
    """This holds if two callers have it at the same time."""
    runner = await a_runner(forge, project_id=project.id)
    answers = await asyncio.gather(
        *(
            forge.anonymous.post("/runners/reset_authentication_token", {"token": runner.token})
            for _ in range(4)
        )
    )
    assert sorted(answer.status for answer in answers) == [201, 403, 403, 403]
    [replaced] = [answer.body["token"] for answer in answers if answer.status == 201]
    verified = await forge.anonymous.post("/runners/verify", {"token": replaced})
    assert (verified.status, verified.body["id"]) == (200, runner.id)


RAN_BY = """
    UPDATE jobs SET runner_id = %(runner_id)s, runner_manager_id = %(manager_id)s WHERE id = %(id)s
"""
MANAGER = """
    INSERT INTO runner_managers (runner_id, system_id, created_at) VALUES (%(runner_id)s, 'machine', %(now)s)
    RETURNING id
"""


async def ran(project: CiProject, runner_id: int, status: str, manager_id: int | None = None) -> int:
    """Create a job of the project that this runner has run; return its id."""
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
    """Maintainers of one of its projects see those of its jobs whose projects give them at least the role Reporter."""
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
    await ran(outside, of_group, "success")  # the project was in the group before
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
