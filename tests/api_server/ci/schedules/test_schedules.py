"""Pipeline schedules: who may do what with them, when they run next, and with whose rights."""

import asyncio
import datetime
import zoneinfo
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import gitlab
import orjson
import pytest

from api_server.ci.schedules import queries, schedules
from api_server.ci.schedules.schedules import (
    RAILS_TIME_ZONES,
    cron_problems,
    next_run,
    queue_due_schedules,
    run_schedule,
)
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.support.ci import CiProject, ci_project
from tests.support.clock import MovedClock, forge_with_clock
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
    """The developer's schedule."""
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
    assert list(made) == [*KEYS, "last_pipeline", "variables", "inputs"]
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
        ({"inputs": [{"name": "a"}]}, {"error": "inputs[value] is missing"}),
        ({"inputs": [{"name": "a", "value": "x" * 1023}]},
         {"message": {"inputs.value": ["exceeds max serialized size: 1024 characters"]}}),
        ({"inputs": [{"name": str(n), "value": n} for n in range(21)]},
         {"message": {"inputs": ["exceed the limit of 20."]}}),
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


async def test_its_inputs_are_set_changed_and_destroyed_and_kept_sealed(
    forge: Forge, project: CiProject, maintainer: Person
) -> None:
    form = [("inputs[][name]", "strategy"), ("inputs[][value]", "blue-green"),
            ("inputs[][name]", "count"), ("inputs[][value]", "2"), *NEW.items()]  # fmt: skip
    made = (await project.api.post(f"{project.url}/pipeline_schedules", data=form, expect=201)).body
    assert made["inputs"] == [
        {"name": "strategy", "value": "blue-green"},
        {"name": "count", "value": "2"},
    ]
    stored = "SELECT value FROM pipeline_schedule_inputs WHERE schedule_id = %(id)s"
    assert all(b"blue" not in bytes(row.value) for row in await forge.database.rows(stored, id=made["id"]))
    changes = [
        {"name": "strategy", "destroy": True},
        {"name": "gone", "destroy": True},
        {"name": "count", "value": 3},
        {"name": "list", "value": ["a", 1]},
        {"name": "no", "value": False},
    ]
    changed = await project.api.put(one(project, made), {"inputs": changes}, expect=200)
    assert changed.body["inputs"] == changes[2:]
    assert (await maintainer.api.get(one(project, made))).body["inputs"] == changes[2:]
    assert (await maintainer.api.put(one(project, made), {"inputs": changes})).status == 403
    stranger = await forge.new_member(project.id, Role.REPORTER)
    assert not {"inputs", "variables"} & set((await stranger.api.get(one(project, made))).body)
    events = (await forge.root.get(f"{project.url}/audit_events?per_page=100")).body
    said = [
        event["details"].get("change") for event in events if event["details"].get("target_id") == made["id"]
    ]
    assert said.count("inputs") == 2
    await project.api.delete(one(project, made))


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
        made.play()  # the object loses its attributes
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

    (listed,) = await project.api.until(f"{project.url}/pipeline_schedules/{schedule_id}/pipelines")
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


NIGHTLY = "nightly: {script: echo, only: [schedules]}\n"
QUEUED = """
    SELECT coalesce(json_agg(args ORDER BY id), '[]')::text FROM procrastinate_jobs
    WHERE task_name = 'run_pipeline_schedule' AND (args ->> 'schedule_id')::bigint = %(id)s
"""


@attrs.define
class Scene:
    """A server without background work whose clock does not move, and a project whose developer has a schedule."""

    forge: Forge
    clock: MovedClock
    project: CiProject
    schedule_id: int

    @property
    def url(self) -> str:
        return f"{self.project.url}/pipeline_schedules/{self.schedule_id}"

    async def shown(self) -> dict[str, Any]:
        return dict((await self.forge.root.get(self.url)).body)

    async def queued(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = orjson.loads(
            await self.forge.database.value(QUEUED, id=self.schedule_id)
        )
        return found

    async def run(self) -> None:
        """Run the queued tasks, each of them twice, as may happen to a task."""
        for arguments in [*await self.queued()] * 2:
            await run_schedule(self.forge.server.app[SERVICES], **arguments)

    async def pipelines(self) -> list[dict[str, Any]]:
        return list((await self.forge.root.get(f"{self.url}/pipelines")).body)


@pytest.fixture(scope="module")
async def stage(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Forge, MovedClock]]:
    async with forge_with_clock(new_database(), tmp_path_factory.mktemp("schedules")) as made:
        yield made


@pytest.fixture
async def scene(stage: tuple[Forge, MovedClock]) -> Scene:
    forge, clock = stage
    project = await ci_project(forge)
    await project.commit(NIGHTLY)
    new = {"description": "nightly", "ref": "topic", "cron": "0 4 * * *", "cron_timezone": "Berlin"}
    made = await project.api.post(f"{project.url}/pipeline_schedules", new, expect=201)
    await project.api.post(
        f"{project.url}/pipeline_schedules/{made.body['id']}/variables", {"key": "A", "value": "1"}
    )
    return Scene(forge, clock, project, made.body["id"])


def moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


async def test_a_schedule_runs_when_its_moment_has_come_and_what_was_missed_once(scene: Scene) -> None:
    due = moment((await scene.shown())["next_run_at"])
    scene.clock.now = due - datetime.timedelta(seconds=1)
    await queue_due_schedules(scene.forge.database)
    assert await scene.queued() == []
    scene.clock.now = due + datetime.timedelta(days=3, minutes=1)  # no process has looked for three days
    for _ in range(2):
        await queue_due_schedules(scene.forge.database)
    assert len(await scene.queued()) == 1
    assert moment((await scene.shown())["next_run_at"]) == due + datetime.timedelta(days=4)
    await scene.run()
    (pipeline,) = await scene.pipelines()
    assert (pipeline["source"], pipeline["ref"]) == ("schedule", "topic")
    assert set(await scene.project.statuses(pipeline)) == {"nightly"}
    shown = (await scene.forge.root.get(f"{scene.project.url}/pipelines/{pipeline['id']}")).body
    assert shown["user"]["id"] == scene.project.developer.id


async def test_its_pipeline_gets_its_inputs(scene: Scene) -> None:
    header = "spec: {inputs: {n: {type: number}, l: {type: array}, big: }}"
    await scene.project.commit(
        f"{header}\n---\nj $[[ inputs.n ]] $[[ inputs.big ]]: {{script: '$[[ inputs.l ]]'}}"
    )
    values = {"n": 2, "l": ["a", "b"], "big": 2**70}
    inputs = [{"name": name, "value": value} for name, value in values.items()]
    await scene.project.api.put(scene.url, {"inputs": inputs}, expect=200)
    await scene.project.api.post(f"{scene.url}/play", expect=201)
    await scene.run()
    (pipeline,) = await scene.pipelines()
    assert set(await scene.project.statuses(pipeline)) == {f"j 2 {2**70}"}


async def test_several_processes_queue_one_run_once(stage: tuple[Forge, MovedClock], scene: Scene) -> None:
    scene.clock.now = moment((await scene.shown())["next_run_at"])
    await asyncio.gather(*(queue_due_schedules(scene.forge.database) for _ in range(4)))
    assert len(await scene.queued()) == 1


async def test_an_inactive_one_does_not_run_and_misses_nothing(scene: Scene) -> None:
    assert (await scene.project.api.put(scene.url, {"active": False})).status == 200
    scene.clock.move(days=2)
    await queue_due_schedules(scene.forge.database)
    assert (await scene.project.api.put(scene.url, {"active": True})).status == 200
    await queue_due_schedules(scene.forge.database)
    assert await scene.queued() == []
    assert moment((await scene.shown())["next_run_at"]) > scene.clock.now


#: Requests that take the owner's rights or the schedule's ref away, with their bodies and statuses.
LOST: dict[str, tuple[str, dict[str, Any] | None, int]] = {
    "blocked": ("POST /users/{owner}/block", None, 201),
    "left": ("DELETE {url}/members/{owner}", None, 204),
    "degraded": ("PUT {url}/members/{owner}", {"access_level": int(Role.REPORTER)}, 200),
    "protected": ("POST {url}/protected_branches", {"name": "topic"}, 201),
    "gone": ("DELETE /users/{owner}?hard_delete=true", None, 204),
    "archived": ("POST {url}/archive", None, 201),
    "branchless": ("DELETE {url}/repository/branches/topic", None, 204),
}


async def _lose(scene: Scene, how: str) -> None:
    request, body, status = LOST[how]
    method, path = request.format(url=scene.project.url, owner=scene.project.developer.id).split()
    await scene.forge.root.request(method, path, json=body, expect=status)


@pytest.mark.parametrize("how", ["blocked", "left", "degraded", "protected", "gone"])
async def test_it_is_deactivated_when_its_owner_has_lost_her_rights(scene: Scene, how: str) -> None:
    scene.clock.now = moment((await scene.shown())["next_run_at"])
    await queue_due_schedules(scene.forge.database)
    await _lose(scene, how)
    await scene.run()
    assert await scene.pipelines() == []
    assert (await scene.shown())["active"] is False
    events = (await scene.forge.root.get(f"{scene.project.url}/audit_events")).body
    told = [
        each["details"] for each in events if each["details"]["event_name"] == "pipeline_schedule_updated"
    ]
    assert (told[0]["change"], told[0]["from"], told[0]["to"]) == ("active", "true", "false")
    assert told[0]["author_name"] == "(System)"


@pytest.mark.parametrize("how", ["archived", "branchless"])
async def test_where_there_is_nothing_to_run_it_waits_for_its_next_moment(scene: Scene, how: str) -> None:
    scene.clock.now = moment((await scene.shown())["next_run_at"])
    await queue_due_schedules(scene.forge.database)
    await _lose(scene, how)
    await scene.run()
    assert await scene.pipelines() == []
    assert (await scene.shown())["active"] is True


async def test_the_player_needs_rights_of_her_own(scene: Scene) -> None:
    """The owner's schedule stays active."""
    other = await scene.forge.new_member(scene.project.id, Role.DEVELOPER)
    assert (await other.api.post(f"{scene.url}/play")).status == 201
    await scene.forge.root.delete(f"{scene.project.url}/members/{other.id}")
    await scene.run()
    assert await scene.pipelines() == []
    assert (await scene.shown())["active"] is True


async def test_a_due_run_is_the_new_owners_and_nobody_elses_loss_deactivates_it(scene: Scene) -> None:
    before = await queries.find_by_id(scene.forge.database, scene.schedule_id)
    scene.clock.now = moment((await scene.shown())["next_run_at"])
    await queue_due_schedules(scene.forge.database)
    maintainer = await scene.forge.new_member(scene.project.id, Role.MAINTAINER)
    assert (await maintainer.api.post(f"{scene.url}/take_ownership")).status == 201
    await _lose(scene, "left")
    async with scene.forge.database.transaction() as transaction:  # on behalf of the owner before
        await schedules.deactivate(transaction, before)
    await scene.run()
    (pipeline,) = await scene.pipelines()
    shown = (await scene.forge.root.get(f"{scene.project.url}/pipelines/{pipeline['id']}")).body
    assert shown["user"]["id"] == maintainer.id
    assert (await scene.shown())["active"] is True


async def test_what_is_deactivated_does_not_run_though_it_was_due(scene: Scene) -> None:
    scene.clock.now = moment((await scene.shown())["next_run_at"])
    await queue_due_schedules(scene.forge.database)
    await scene.project.api.put(scene.url, {"active": False})
    await scene.run()
    assert await scene.pipelines() == []


FORGET_ZONE = "UPDATE pipeline_schedules SET cron_timezone = 'Nowhere' WHERE id = %(id)s RETURNING id"


async def test_one_whose_time_zone_is_no_more_is_deactivated_and_holds_up_nobody(scene: Scene) -> None:
    scene.clock.now = moment((await scene.shown())["next_run_at"])
    await scene.forge.database.value(FORGET_ZONE, id=scene.schedule_id)
    await queue_due_schedules(scene.forge.database)
    assert await scene.queued() == []
    assert (await scene.shown())["active"] is False


def runs(cron: str, zone: str, after: str, count: int = 1) -> list[str]:
    """Return the next moments in UTC."""
    moment, found = datetime.datetime.fromisoformat(after), []
    for _ in range(count):
        moment = next_run(cron, zone, moment)
        found.append(moment.strftime("%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        ("* * * * *", "UTC", "2026-05-01T10:00:30Z", ["05-01 10:01", "05-01 10:02"]),
        ("0 4 * * *", "UTC", "2026-05-01T04:00:00Z", ["05-02 04:00"]),  # strictly after the given moment
        ("0 4 * * *", "Tokyo", "2026-05-01T00:00:00Z", ["05-01 19:00"]),
        ("0 4 * * *", "Asia/Tokyo", "2026-05-01T00:00:00Z", ["05-01 19:00"]),
        ("0 4 * * *", "Pacific Time (US & Canada)", "2026-05-01T00:00:00Z", ["05-01 11:00"]),
        ("0  9 * * mon-fri", "Berlin", "2026-05-01T08:00:00Z", ["05-04 07:00", "05-05 07:00"]),
        ("0 0 1 * 0", "UTC", "2026-05-01T00:00:00Z", ["05-03 00:00", "05-10 00:00"]),  # either day matches
        ("0 0 * * 7", "UTC", "2026-05-01T00:00:00Z", ["05-03 00:00"]),
        ("*/20 8-9 * * *", "UTC", "2026-05-01T08:30:00Z", ["05-01 08:40", "05-01 09:00", "05-01 09:20"]),
        # clocks are put forward at 01:00 UTC: 02:30 does not exist, and runs of this time happen an hour later
        ("30 2 * * *", "Berlin", "2026-03-28T00:00:00Z", ["03-28 01:30", "03-29 01:00", "03-30 00:30"]),
        ("0 * * * *", "Berlin", "2026-03-29T00:00:00Z", ["03-29 01:00", "03-29 02:00"]),
        # clocks are put back at 01:00 UTC: 02:30 occurs twice
        ("30 2 * * *", "Berlin", "2026-10-24T12:00:00Z", ["10-25 00:30", "10-26 01:30"]),
        ("*/30 * * * *", "Berlin", "2026-10-25T00:00:00Z", ["10-25 00:30", "10-25 01:00", "10-25 01:30"]),
    ],
)
def test_the_next_moments(cron: str, zone: str, after: str, expected: list[str]) -> None:
    assert runs(cron, zone, after, len(expected)) == expected


def test_a_leap_day_is_waited_for() -> None:
    found = next_run("0 0 29 2 *", "UTC", datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC))
    assert found == datetime.datetime(2028, 2, 29, tzinfo=datetime.UTC)


def test_rails_names_are_time_zones_and_those_of_iana_are_taken_too() -> None:
    assert len(RAILS_TIME_ZONES) > 150
    assert {name for name in RAILS_TIME_ZONES if cron_problems("* * * * *", name)} == set()
    assert {name for name in zoneinfo.available_timezones() if cron_problems("* * * * *", name)} == set()


@pytest.mark.parametrize(
    "cron",
    ["", "x", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "@daily",
     "*/0 * * * *", "0 0 30 2 *", "H * * * *", "R * * * *", "a b c d e", "0 4 * * * UTC", "-1 * * * *", "* * * * *\0"],
)  # fmt: skip
def test_what_is_no_expression_of_five_fields_or_never_comes_is_refused(cron: str) -> None:
    assert cron_problems(cron, "UTC") == {"cron": [" is invalid syntax"]}
    with pytest.raises(ValueError, match=r"acceptable|columns|moments|next date|hash_id"):
        next_run(cron, "UTC", datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))


@pytest.mark.parametrize("zone", ["", "Nowhere", "../etc/passwd", "/etc/passwd", "Europe", "x" * 255, "\0"])
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    assert cron_problems("* * * * *", zone) == {"cron_timezone": [" is invalid syntax"]}
