"""Pipeline schedules as the API keeps them: who may do what, and what is refused."""

import asyncio
from typing import Any

import gitlab
import pytest

from api_server.web.routes import Role
from tests.support.ci import CiProject, ci_project, eventually
from tests.support.forge import Forge, Person

JOB = "nightly: {script: echo, only: [schedules]}\nother: {script: echo, except: [schedules]}\n"
NEW = {"description": "nightly", "ref": "topic", "cron": "0 4 1 1 *"}
KEYS = ["id", "description", "ref", "cron", "cron_timezone", "next_run_at", "active", "created_at", "updated_at",
        "owner"]  # fmt: skip


@pytest.fixture(scope="module")
async def project(forge: Forge) -> CiProject:
    project = await ci_project(forge)
    await project.commit(JOB)
    return project


@pytest.fixture(scope="module")
async def maintainer(forge: Forge, project: CiProject) -> Person:
    return await forge.new_member(project.id, Role.MAINTAINER, "maintainer")


async def schedule(project: CiProject, **values: Any) -> dict[str, Any]:
    """The developer's."""
    made = await project.api.post(f"{project.url}/pipeline_schedules", NEW | values, expect=201)
    return dict(made.body)


@pytest.fixture
async def made(project: CiProject) -> Any:
    shown = await schedule(project)
    yield shown
    await project.forge.root.delete(f"{project.url}/pipeline_schedules/{shown['id']}")


def one(project: CiProject, made: dict[str, Any], rest: str = "") -> str:
    return f"{project.url}/pipeline_schedules/{made['id']}{rest}"


async def test_a_schedule_has_every_key(project: CiProject, made: dict[str, Any]) -> None:
    assert list(made) == [*KEYS, "last_pipeline", "variables"]
    assert made["next_run_at"].endswith("-01-01T04:00:00.000Z")
    shown = {key: made[key] for key in ("description", "ref", "cron", "cron_timezone", "active")}
    assert shown == NEW | {"ref": "refs/heads/topic", "cron_timezone": "UTC", "active": True}
    assert (made["owner"]["id"], made["last_pipeline"], made["variables"]) == (project.developer.id, None, [])
    assert (await project.api.get(one(project, made))).body == made
    listed = {key: made[key] for key in KEYS}
    where = f"{project.url}/pipeline_schedules"
    for query in ("", "?scope=active", "?pagination=keyset"):
        assert (await project.api.get(where + query)).body == [listed]
    assert (await project.api.get(f"{where}?scope=inactive")).body == []
    wrong = await project.api.get(f"{where}?scope=x")
    assert (wrong.status, wrong.body) == (400, {"error": "scope does not have a valid value"})


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        ({"cron": "every day"}, {"message": {"cron": [" is invalid syntax"]}}),
        ({"cron_timezone": "Nowhere"}, {"message": {"cron_timezone": [" is invalid syntax"]}}),
        ({"description": " ", "ref": ""}, {"error": "description is empty, ref is empty"}),
        ({"ref": "main"},
         {"message": {"base": ["The current user is not authorized to create the pipeline schedule"]}}),
        ({"inputs": [{"name": "a", "value": "b"}]}, {"error": "inputs is not supported by this service"}),
        ({"ref": "both"}, {"message": {"ref": ["is ambiguous"]}}),
    ],
)  # fmt: skip
async def test_what_cannot_be_a_schedule_is_refused(
    forge: Forge, project: CiProject, sent: dict[str, Any], body: Any
) -> None:
    for kind, name in (("branches", "branch"), ("tags", "tag_name")):
        await forge.root.post(f"{project.url}/repository/{kind}", {name: "both", "ref": "topic"})
    refused = await project.api.post(f"{project.url}/pipeline_schedules", NEW | sent)
    assert (refused.status, refused.body) == (400, body)


async def test_its_owner_changes_it_and_its_next_moment_follows(
    project: CiProject, maintainer: Person, made: dict[str, Any]
) -> None:
    change = {"cron": "30 5 2 2 *", "cron_timezone": "Tokyo", "active": False, "ref": "refs/heads/later"}
    assert (await maintainer.api.put(one(project, made), change)).status == 403
    changed = await project.api.put(one(project, made), change, expect=200)
    assert changed.body["next_run_at"].endswith("-02-01T20:30:00.000Z")
    assert {key: changed.body[key] for key in change} == change
    assert changed.body["description"] == "nightly"
    assert (await project.forge.root.put(one(project, made), {"description": "hourly"})).status == 200
    refused = await project.api.put(one(project, made), {"ref": "main"})
    text = "The current user is not authorized to update the pipeline schedule"
    assert (refused.status, refused.body) == (400, {"message": {"base": [text]}})
    inactive = (await project.api.get(f"{project.url}/pipeline_schedules?scope=inactive")).body
    assert [each["id"] for each in inactive] == [made["id"]]


async def test_a_maintainer_takes_it_over_and_who_had_it_does_no_more(
    forge: Forge, project: CiProject, maintainer: Person, made: dict[str, Any]
) -> None:
    other = await forge.new_member(project.id, Role.DEVELOPER)
    assert "variables" not in (await other.api.get(one(project, made))).body
    for request in (("POST", "/take_ownership"), ("PUT", ""), ("DELETE", ""), ("POST", "/variables")):
        sent = {"key": "A", "value": "b"}
        assert (await other.api.request(request[0], one(project, made, request[1]), json=sent)).status == 403
    had = await project.api.post(one(project, made, "/take_ownership"))
    assert (had.status, had.body) == (200, made)
    taken = await maintainer.api.post(one(project, made, "/take_ownership"))
    assert (taken.status, taken.body["owner"]["id"]) == (201, maintainer.id)
    assert (await project.api.post(one(project, made, "/take_ownership"))).status == 403
    assert (await project.api.put(one(project, made), {"description": "x"})).status == 403
    assert (await project.api.delete(one(project, made))).status == 403
    assert (await maintainer.api.delete(one(project, made))).status == 204
    gone = await maintainer.api.get(one(project, made))
    assert (gone.status, gone.body) == (404, {"message": "404 Pipeline Schedule Not Found"})


async def test_its_variables_are_its_owners_and_kept_sealed(
    forge: Forge, project: CiProject, maintainer: Person, made: dict[str, Any]
) -> None:
    where = one(project, made, "/variables")
    added = await project.api.post(where, {"key": "COLOR", "value": "red"})
    shown = {"variable_type": "env_var", "key": "COLOR", "value": "red", "raw": False}
    assert (added.status, added.body) == (201, shown)
    stored = "SELECT value FROM pipeline_schedule_variables WHERE schedule_id = %(id)s"
    assert b"red" not in bytes(await forge.database.value(stored, id=made["id"]))
    again = await project.api.post(where, {"key": "COLOR", "value": "blue"})
    assert (again.status, again.body) == (400, {"message": {"key": ["has already been taken"]}})
    wrong = await project.api.post(where, {"key": "A B", "value": "x"})
    text = "can contain only letters, digits and '_'."
    assert (wrong.status, wrong.body) == (400, {"message": {"key": [text]}})
    assert (await maintainer.api.put(f"{where}/COLOR", {"value": "x"})).status == 403
    shown |= {"value": "green", "variable_type": "file"}
    changed = await project.api.put(f"{where}/COLOR", {"value": "green", "variable_type": "file"})
    assert (changed.status, changed.body) == (200, shown)
    assert (await maintainer.api.get(one(project, made))).body["variables"] == [shown]
    removed = await maintainer.api.delete(f"{where}/COLOR")
    assert (removed.status, removed.body) == (202, shown)
    gone = await project.api.delete(f"{where}/COLOR")
    assert (gone.status, gone.body) == (404, {"message": "404 Pipeline Schedule Variable Not Found"})


async def test_a_schedule_has_only_so_many_variables(forge: Forge) -> None:
    with forge.changed_settings(variables_limit=1):
        where = f"/projects/{(await forge.project())['id']}/pipeline_schedules"
        variables = f"{where}/{(await forge.root.post(where, NEW)).body['id']}/variables"
        assert (await forge.root.post(variables, {"key": "A", "value": "1"})).status == 201
        refused = await forge.root.post(variables, {"key": "B", "value": "1"})
        text = "Maximum number of pipeline schedule variables (1) exceeded"
        assert (refused.status, refused.body) == (400, {"message": {"base": [text]}})


async def test_python_gitlab_walks_through_schedules(
    forge: Forge, project: CiProject, maintainer: Person
) -> None:
    def client(person: Person) -> Any:
        return gitlab.Gitlab(forge.base, private_token=person.token).projects.get(project.id)

    def make() -> int:
        found = client(project.developer)
        made = found.pipelineschedules.create({**NEW, "cron_timezone": "Berlin"})
        made.cron = "5 4 1 1 *"
        made.save()
        made.variables.create({"key": "COLOR", "value": "red"})
        made.variables.update("COLOR", {"value": "blue"})
        assert found.pipelineschedules.get(made.id).attributes["variables"][0]["value"] == "blue"
        schedule_id = int(made.id)
        made.play()  # forgets what it is
        return schedule_id

    def finish(schedule_id: int) -> Any:
        found = client(maintainer).pipelineschedules.get(schedule_id)
        assert schedule_id in [each.id for each in client(maintainer).pipelineschedules.list(get_all=True)]
        (pipeline,) = found.pipelines.list(get_all=True)
        found.take_ownership()
        found.variables.delete("COLOR")
        found.delete()
        return pipeline.attributes

    schedule_id = await asyncio.to_thread(make)

    async def played() -> Any:
        return (await project.api.get(f"{project.url}/pipeline_schedules/{schedule_id}/pipelines")).body

    (listed,) = await eventually(played)
    shown = (await project.api.get(f"{project.url}/pipeline_schedules/{schedule_id}")).body
    assert shown["last_pipeline"] == listed
    pipeline = await asyncio.to_thread(finish, schedule_id)
    assert (pipeline["source"], pipeline["ref"]) == ("schedule", "topic")
    assert set(await project.statuses(pipeline)) == {"nightly"}
    given = (await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/variables")).body
    assert [(each["key"], each["value"]) for each in given] == [("COLOR", "blue")]


async def test_playing_asks_for_the_right_to_run_there(
    forge: Forge, project: CiProject, made: dict[str, Any]
) -> None:
    reporter = await forge.new_member(project.id, Role.REPORTER)
    assert (await reporter.api.post(one(project, made, "/play"))).status == 403
    on_main = (await forge.root.post(f"{project.url}/pipeline_schedules", NEW | {"ref": "main"})).body
    assert (await project.api.post(one(project, on_main, "/play"))).status == 403
    assert (await forge.root.delete(one(project, on_main))).status == 204
    played = await project.api.post(one(project, made, "/play"))
    assert (played.status, played.body) == (201, {"message": "201 Created"})
