"""A reset restores everything, whatever was done: answers, tables, sequences, files, and state in memory."""

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
from api_server.state.queue import enqueue
from api_server.status_checks.dispatcher import DISPATCHER
from api_server.testing import snapshots
from api_server.testing.quiet import REQUEST_GATE
from api_server.testing.snapshots import SNAPSHOTS, roots
from api_server.web.context import SERVICES
from api_server.web.routes import Route
from common.config_errors import ConfigError
from tests.api_server.status_checks.receiver import hang, running_receiver
from tests.api_server.testing.states import State, control, differences, put_back, reset, start_here, state_of
from tests.support.forge import Forge, running_forge
from tests.support.furnished import Furnished, furnish
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.route_table import name_of, required
from tests.support.runner import a_runner
from tests.support.waiting import until

WRITES = [route for routes in ROUTES for route in routes.routes if route.method != "GET"]
#: Exceptions from the restored folders: the key, which never changes, and the data of the controls.
NEVER_CHANGED = {"secret_key", "testing"}
#: Parts of the set-up: settings, connections, listeners, folders, and parts of the controls.
SET_UP = {
    "settings", "vault", "clock", "repositories", "objects", "queue", "random", "dispatcher", "edges", "outbox",
    "resolver", "outgoing_session", "outgoing_policy", "zip_files", "below_projects", "user_listeners",
    "creation_listeners", "default_branch_listeners", "ref_listeners", "push_option_listeners",
    "end_of_protection_listeners", "merge_request_listeners", "failures", "remote_files", "signed_in_user",
    "operations_routes", "shutdown", "background", "movable_clock", "request_gate", "snapshots", "on_reset",
    "description", "templates", "loop_watch", "services", "runs", "preconditions",
    "counted",  # asks for the figures of all workers
    "APP_KEY",  # aiohttp_cors
}  # fmt: skip
#: These count work under way, which is over when the state changes.
UNDER_WAY = {
    "held_bodies", "git_slots", "moving", "repository_reads", "ref_lists", "file_streams", "report_readers",
    "arriving_artifacts", "pending_jobs", "hand_out_turns", "requests",
}  # fmt: skip
#: Caches of commits by their SHA and of texts by their content, which are valid in every state.
TRUE_FOR_EVER = {"last_commits", "version_sizes", "rendered_texts", "folder_commits"}
#: These are emptied by `ON_RESET`.
OF_CONTROLS = {"journal", "failures_to_come"}
#: These look values up again after each commit, and when they are told to.
LOOK_UPS = {"tokens", "groups", "projects", "instance_settings", "identity_keys"}


@attrs.frozen
class Scene:
    """A server without background work, whose start state has an entity of each kind."""

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
        await state_of(forge, furnished)  # some answers are computed at the first request and cached
        await start_here(forge)
        yield Scene(forge, furnished, await state_of(forge, furnished))


async def do(scene: Scene, route: Route) -> int:
    """Send the route's request about existing entities; return the status."""
    path = scene.furnished.path_to(route)
    answer = await scene.forge.root.request(route.method, path, json=required(route))
    return answer.status


async def test_all_that_requests_have_changed_is_as_before(scene: Scene) -> None:
    """Send all writing requests in a random order, some of them after others have changed their entities."""
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
    """The path is an unknown one there."""
    unknown = await forge.anonymous.post(f"{forge.base}/-/unknown/reset")
    assert (await control(forge, "POST", "reset")).status == unknown.status in (404, 405)


async def test_no_other_server_for_tests_has_its_database(scene: Scene, tmp_path: Path) -> None:
    settings = scene.forge.settings
    shutil.copy(settings.data_dir / "secret_key", tmp_path)
    with pytest.raises(ConfigError, match="Another server for tests works with this database"):
        async with running_forge(settings.database_url, tmp_path, testing=True, work=False):
            pass
    left = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE %(last)s"
    async with asyncio.timeout(20):  # PostgreSQL notices the end of a connection a moment later
        while await scene.forge.database.value(left, last="SELECT pg_try_advisory_lock%"):
            await asyncio.sleep(0.01)
    await reset(scene.forge)


async def test_no_folder_is_forgotten(scene: Scene) -> None:
    """Every folder in the data directory is restored, whichever part writes into it."""
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
    """Every part of the application has to be in one of these lists."""
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


FILL = """
    INSERT INTO letter_counts (counted, began_at, letters)
    SELECT 'user ' || n, %(now)s, 1 FROM generate_series(1, 5000) n
"""


@attrs.define
class Stuck:
    """A task that goes on until the test ends it, and then writes."""

    begun: asyncio.Event = attrs.field(factory=asyncio.Event)
    may_end: asyncio.Event = attrs.field(factory=asyncio.Event)
    ended: bool = False


@pytest.fixture(scope="module")
async def busy(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Forge, Stuck]]:
    """A server with a task that hangs."""
    stuck = Stuck()

    def add_task(app: Any) -> None:
        async def hang_about() -> None:
            stuck.begun.set()
            await stuck.may_end.wait()
            async with app[SERVICES].database.transaction() as transaction:
                await transaction.run("UPDATE users SET name = 'Somebody else'")
            stuck.ended = True

        app[SERVICES].queue.add("tests_hang_about", hang_about, attempts=5)

    folder, url = tmp_path_factory.mktemp("busy"), new_database()
    settings = {"testing": True, "allow_local_requests": True, "runner_poll_timeout": 300}
    async with running_forge(url, folder, add_task, **settings) as forge:
        yield forge, stuck


async def begin(forge: Forge, stuck: Stuck) -> None:
    stuck.begun.clear()
    stuck.may_end.clear()
    async with forge.database.transaction() as transaction:
        await enqueue(transaction, "tests_hang_about")
    await asyncio.wait_for(stuck.begun.wait(), 20)


async def names(forge: Forge) -> list[str]:
    return [one["name"] for one in (await forge.root.get("/users")).body]


async def test_a_task_under_way_writes_nothing_afterwards(busy: tuple[Forge, Stuck]) -> None:
    forge, stuck = busy
    async with put_back(forge):
        before = await names(forge)
        await begin(forge, stuck)
        await reset(forge)
        stuck.may_end.set()
        settled = await control(forge, "POST", "settle")
        assert settled.body == {"left": []}
        assert (await names(forge), stuck.ended) == (before, False)


async def test_a_snapshot_waits_for_tasks_and_says_which(
    busy: tuple[Forge, Stuck], monkeypatch: pytest.MonkeyPatch
) -> None:
    forge, stuck = busy
    monkeypatch.setattr("api_server.testing.quiet.BEFORE_REFUSAL", 0.05)
    async with put_back(forge):
        await begin(forge, stuck)
        refused = await control(forge, "POST", "snapshot", {})
        assert refused.status == 409
        assert "tests_hang_about" in refused.body["message"]
        assert await names(forge)  # the service goes on


async def test_a_request_that_hangs_is_ended_and_leaves_nothing(busy: tuple[Forge, Stuck]) -> None:
    forge, _ = busy
    async with put_back(forge):
        sending, may_go_on = asyncio.Event(), asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b'{"name": "late", '
            sending.set()
            await may_go_on.wait()
            yield b'"path": "late"}'

        headers = {"Content-Type": "application/json"}
        asked = asyncio.create_task(forge.root.request("POST", "/projects", data=body(), headers=headers))
        await asyncio.wait_for(sending.wait(), 20)
        await until(lambda: "POST /api/v4/projects" in forge.server.app[SERVICES][REQUEST_GATE].inside)
        await reset(forge)
        may_go_on.set()
        answered = await asked
        assert (await forge.root.get("/projects")).body == []
        assert answered.status == 503, answered


async def test_a_runner_that_waits_for_a_job_is_sent_home(busy: tuple[Forge, Stuck]) -> None:
    forge, _ = busy
    async with put_back(forge):
        runner = await a_runner(forge)
        polling = asyncio.create_task(runner.poll(last_update="x"))
        await until(lambda: "POST /api/v4/jobs/request" in forge.server.app[SERVICES][REQUEST_GATE].inside)
        await reset(forge)
        assert (await asyncio.wait_for(polling, 20)).status in (204, 403)


async def test_a_delivery_under_way_is_of_no_state(busy: tuple[Forge, Stuck]) -> None:
    forge, _ = busy
    async with put_back(forge), running_receiver() as receiver:
        receiver.answers = [hang]
        alice = await forge.user("alice")
        project = await new_project(forge, alice)
        check = {"name": "QA", "external_url": receiver.url}
        made = await alice.api.post(f"/projects/{project['id']}/external_status_checks", check)
        assert made.status == 201, made
        await open_merge_request(alice, project)
        await until(lambda: receiver.received)
        await reset(forge)
        assert not forge.server.app[SERVICES][DISPATCHER]._in_flight
        deliveries = "SELECT count(*) FROM status_check_deliveries"
        assert await forge.database.value(deliveries) == 0


async def test_resets_and_requests_at_once(busy: tuple[Forge, Stuck]) -> None:
    """Every request is answered: from the state before, from the one after, or that the state was reset."""
    forge, _ = busy
    async with put_back(forge):

        async def write(number: int) -> int:
            name = f"at-once-{number}"
            made = await forge.root.post(
                "/projects", {"name": name, "path": name, "initialize_with_readme": True}
            )
            if made.status == 201:
                await forge.root.delete(f"/projects/{made.body['id']}")
            return made.status

        async def reset_now() -> int:
            return (await control(forge, "POST", "reset")).status

        writes = [write(number) for number in range(20)]
        resets = [reset_now() for _ in range(4)]
        statuses = await asyncio.gather(*writes[:10], *resets[:2], *writes[10:], *resets[2:])
        assert set(statuses) <= {201, 204, 503}
        assert statuses.count(204) == 4
        await reset(forge)
        assert (await forge.root.get("/projects")).body == []
        assert await forge.database.value("SELECT max(id) FROM projects") is None


async def test_tables_that_were_reset_often_stay_small(busy: tuple[Forge, Stuck]) -> None:
    """The replaced rows are removed; no request waits for this."""
    forge, _ = busy
    sizes = []
    async with put_back(forge):
        for _ in range(15):
            async with forge.database.transaction() as transaction:
                await transaction.run(FILL)
            await reset(forge)
            await until(forge.server.app[SERVICES][SNAPSHOTS].is_clean)
            sizes.append(await forge.database.value("SELECT pg_relation_size('letter_counts')"))
    assert max(sizes) < 1_000_000, sizes
