"""Schedules run when their moment has come: once, by whichever process, with the rights that their owners have."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import orjson
import pytest

from api_server.ci.schedules import queries, schedules
from api_server.ci.schedules.schedules import queue_due_schedules, run_schedule
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.support.ci import CiProject, ci_project
from tests.support.clock import MovedClock, forge_with_clock
from tests.support.forge import Forge

JOB = "nightly: {script: echo, only: [schedules]}\n"
QUEUED = """
    SELECT coalesce(json_agg(args ORDER BY id), '[]')::text FROM procrastinate_jobs
    WHERE task_name = 'run_pipeline_schedule' AND (args ->> 'schedule_id')::bigint = %(id)s
"""


@attrs.define
class Scene:
    """A server whose clock stands, and does no work by itself; with a project whose developer has a schedule."""

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
        """Does what is queued, everything twice, as a task may."""
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
    await project.commit(JOB)
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
    scene.clock.now = due + datetime.timedelta(days=3, minutes=1)  # nobody has looked for three days
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


async def _blocked(scene: Scene) -> None:
    await scene.forge.root.post(f"/users/{scene.project.developer.id}/block")


async def _left(scene: Scene) -> None:
    await scene.forge.root.delete(f"{scene.project.url}/members/{scene.project.developer.id}")


async def _degraded(scene: Scene) -> None:
    member = f"{scene.project.url}/members/{scene.project.developer.id}"
    await scene.forge.root.put(member, {"access_level": int(Role.REPORTER)})


async def _protected(scene: Scene) -> None:
    await scene.forge.root.post(f"{scene.project.url}/protected_branches", {"name": "topic"})


async def _gone(scene: Scene) -> None:
    await scene.forge.root.delete(f"/users/{scene.project.developer.id}?hard_delete=true")


@pytest.mark.parametrize("take", [_blocked, _left, _degraded, _protected, _gone])
async def test_it_is_deactivated_when_its_owner_has_lost_her_rights(
    scene: Scene, take: Callable[[Scene], Any]
) -> None:
    scene.clock.now = moment((await scene.shown())["next_run_at"])
    await queue_due_schedules(scene.forge.database)
    await take(scene)
    await scene.run()
    assert await scene.pipelines() == []
    assert (await scene.shown())["active"] is False
    events = (await scene.forge.root.get(f"{scene.project.url}/audit_events")).body
    told = [
        each["details"] for each in events if each["details"]["event_name"] == "pipeline_schedule_updated"
    ]
    assert (told[0]["change"], told[0]["from"], told[0]["to"]) == ("active", "true", "false")
    assert told[0]["author_name"] == "(System)"


async def _archived(scene: Scene) -> None:
    await scene.forge.root.post(f"{scene.project.url}/archive")


async def _branchless(scene: Scene) -> None:
    await scene.forge.root.delete(f"{scene.project.url}/repository/branches/topic")


@pytest.mark.parametrize("take", [_archived, _branchless])
async def test_where_there_is_nothing_to_run_it_waits_for_its_next_moment(
    scene: Scene, take: Callable[[Scene], Any]
) -> None:
    scene.clock.now = moment((await scene.shown())["next_run_at"])
    await queue_due_schedules(scene.forge.database)
    await take(scene)
    await scene.run()
    assert await scene.pipelines() == []
    assert (await scene.shown())["active"] is True


async def test_the_player_needs_rights_of_her_own(scene: Scene) -> None:
    """The owner's schedule goes on."""
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
    await _left(scene)
    async with scene.forge.database.transaction() as transaction:  # by whom it was judged a moment ago
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
