"""A reset brings everything back, whatever was done: answers, tables, sequences, files, and what is only in memory."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from api_server.api import ROUTES
from api_server.services import Services
from api_server.testing import snapshots
from api_server.testing.snapshots import roots
from api_server.web.context import SERVICES
from api_server.web.routes import Route
from common.mistakes import Mistake
from tests.api_server.testing.states import State, control, differences, reset, start_here, state_of
from tests.support.forge import Forge, running_forge
from tests.support.furnished import Furnished, furnish
from tests.support.route_table import name_of, required

WRITES = [route for routes in ROUTES for route in routes.routes if route.method != "GET"]
#: Beside the folders that are brought back: the key, which never changes, and what the controls keep.
NEVER_CHANGED = {"secret_key", "testing"}
#: How it was set up: settings, connections, listeners, folders, and what the controls are made of.
SET_UP = {
    "settings", "vault", "clock", "repositories", "objects", "queue", "random", "dispatcher", "edges", "outbox",
    "resolver", "outgoing_session", "outgoing_policy", "zip_files", "below_projects", "user_listeners",
    "creation_listeners", "default_branch_listeners", "ref_listeners", "push_option_listeners",
    "end_of_protection_listeners", "merge_request_listeners", "failures", "remote_files", "signed_in_user",
    "operations_routes", "shutdown", "background", "movable_clock", "request_gate", "snapshots", "on_reset",
    "description", "templates", "loop_watch", "services", "runs", "preconditions",
    "counted",  # by which the figures of all workers are asked for
    "APP_KEY",  # aiohttp_cors
}  # fmt: skip
#: What is under way is counted there, and over when the state changes.
UNDER_WAY = {
    "held_bodies", "git_places", "moving", "repository_reads", "file_streams", "report_readers",
    "arriving_artifacts", "pending_jobs", "hand_out_turns", "requests",
}  # fmt: skip
#: Of commits by their SHA, which are what they are in every state.
TRUE_FOR_EVER = {"last_commits", "version_sizes"}
#: What `ON_RESET` empties.
OF_CONTROLS = {"journal", "failures_to_come"}
#: Look things up again after each commit, and when they are told to.
LOOK_UPS = {"tokens", "groups", "projects", "instance_settings"}


@attrs.frozen
class Scene:
    """A server that does no work by itself, with one of everything; that is its start."""

    forge: Forge
    furnished: Furnished
    start: State

    async def state(self) -> State:
        return await state_of(self.forge, self.furnished)


@pytest.fixture(scope="module")
async def scene(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    folder = tmp_path_factory.mktemp("state")
    async with running_forge(new_database(), folder, testing=True, work=False) as forge:
        furnished = await furnish(forge)
        await state_of(forge, furnished)  # some answers are made when they are first read, and kept
        await start_here(forge)
        yield Scene(forge, furnished, await state_of(forge, furnished))


async def do(scene: Scene, route: Route) -> int:
    """What the route does with what there is, and the status that it answers."""
    path = scene.furnished.path_to(route)
    answer = await scene.forge.root.request(route.method, path, json=required(route))
    return answer.status


async def test_all_that_requests_have_changed_is_as_before(scene: Scene) -> None:
    """All requests that write, in an order that nobody has chosen, some of them on what others have left."""
    dice = random.Random(15)
    done = {}
    for route in dice.sample(WRITES, len(WRITES)):
        done[name_of(route)] = await do(scene, route)
        if dice.random() < 0.3:
            await reset(scene.forge)
    assert sum(200 <= status < 300 for status in done.values()) > 60, done
    await furnish(scene.forge)
    assert differences(scene.start, await state_of(scene.forge))
    await reset(scene.forge)
    assert differences(scene.start, await scene.state()) == []


async def test_ids_begin_again_where_they_were(scene: Scene) -> None:
    made = []
    for _ in range(2):
        project = await scene.forge.project(initialize_with_readme=True)
        user = await scene.forge.user()
        commits = await scene.forge.root.get(f"/projects/{project['id']}/repository/commits")
        made.append((project["id"], user.id, len(commits.body)))
        await reset(scene.forge)
    assert made[0] == made[1]


async def test_snapshots_are_states_of_their_own(scene: Scene) -> None:
    forge = scene.forge
    await reset(forge)
    project = await forge.project(initialize_with_readme=True)
    first = (await control(forge, "POST", "snapshot")).body["id"]
    at_first = await scene.state()
    await forge.root.delete(f"/projects/{project['id']}")
    await forge.project(initialize_with_readme=True)
    second = (await control(forge, "POST", "snapshot", {})).body["id"]
    at_second = await scene.state()
    for id_, expected in ((first, at_first), (second, at_second), ("start", scene.start), (first, at_first)):
        assert (await control(forge, "POST", "restore", {"id": id_})).status == 204
        assert differences(expected, await scene.state()) == []
    listed = await control(forge, "GET", "snapshots")
    assert [one["id"] for one in listed.body] == ["start", first, second]
    assert (await control(forge, "DELETE", f"snapshot/{first}")).status == 204
    assert (await control(forge, "POST", "restore", {"id": first})).status == 404
    assert (await control(forge, "POST", "restore", {"id": second})).status == 204
    assert differences(at_second, await scene.state()) == []
    assert (await control(forge, "DELETE", f"snapshot/{second}")).status == 204
    await reset(forge)


@pytest.mark.parametrize(
    ("method", "name", "body", "status"),
    [
        ("POST", "restore", {"id": "unknown"}, 404),
        ("POST", "restore", {}, 400),
        ("POST", "restore", {"id": 1}, 400),
        ("POST", "restore", [], 400),
        ("POST", "snapshot", {"as": "end"}, 400),
        ("DELETE", "snapshot/unknown", None, 404),
        ("DELETE", "snapshot/start", None, 400),
    ],
)
async def test_what_cannot_be_done_is_said_in_a_sentence(
    scene: Scene, method: str, name: str, body: Any, status: int
) -> None:
    answer = await control(scene.forge, method, name, body)
    assert (answer.status, list(answer.body)) == (status, ["message"]), answer


async def test_a_page_of_another_origin_cannot_reset(scene: Scene) -> None:
    answer = await control(scene.forge, "POST", "reset", headers={"Origin": "http://elsewhere.example"})
    assert answer.status == 403


async def test_other_servers_have_no_such_controls(forge: Forge) -> None:
    """A path like any other that nothing is at."""
    unknown = await forge.anonymous.post(f"{forge.base}/-/unknown/reset")
    assert (await control(forge, "POST", "reset")).status == unknown.status in (404, 405)


async def test_no_other_server_for_tests_has_its_database(scene: Scene, tmp_path: Path) -> None:
    settings = scene.forge.settings
    shutil.copy(settings.data_dir / "secret_key", tmp_path)
    with pytest.raises(Mistake, match="Another server for tests works with this database"):
        async with running_forge(settings.database_url, tmp_path, testing=True, work=False):
            pass
    left = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE %(last)s"
    async with asyncio.timeout(20):  # PostgreSQL hears of the end of a connection a moment later
        while await scene.forge.database.value(left, last="SELECT pg_try_advisory_lock%"):
            await asyncio.sleep(0.01)
    await reset(scene.forge)


async def test_no_folder_is_forgotten(scene: Scene) -> None:
    """Whatever writes into the data directory has its folder brought back."""
    for route in WRITES:
        await do(scene, route)
    known = {
        root.relative_to(scene.forge.settings.data_dir).parts[0]
        for root in roots(scene.forge.server.app[SERVICES])
    }
    there = {path.name for path in Path(scene.forge.settings.data_dir).iterdir()}
    await reset(scene.forge)
    assert there - known - NEVER_CHANGED == set()


def test_nothing_is_forgotten_that_the_process_remembers(scene: Scene) -> None:
    """Whoever puts another part into the application says what becomes of it."""
    app = scene.forge.server.app
    parts = set(app[SERVICES]._parts)
    forgotten = set(snapshots.REMEMBERED)
    assert forgotten <= parts
    names = {part.name for part in parts - forgotten}
    names |= {field.name for field in attrs.fields(Services) if not field.name.startswith("_")}
    names |= {str(key).split("(")[1].split(",")[0].rpartition(".")[2].strip("'>") for key in app}
    assert names - SET_UP - UNDER_WAY - LOOK_UPS - OF_CONTROLS - TRUE_FOR_EVER == set()


async def test_who_has_asked_too_often_may_ask_again(new_forge: Any) -> None:
    async with new_forge(testing=True, work=False, jobs_rate_limit=1) as forge:
        project = await forge.project()
        await start_here(forge)
        jobs = f"/projects/{project['id']}/jobs"
        assert [(await forge.root.get(jobs)).status for _ in range(2)] == [200, 429]
        await reset(forge)
        assert [(await forge.root.get(jobs)).status for _ in range(2)] == [200, 429]
        moved = await control(forge, "POST", "clock", {"advance": 61})
        assert moved.status == 200, moved
        assert (await forge.root.get(jobs)).status == 200
        assert forge.server.app[SERVICES].clock() is not None
