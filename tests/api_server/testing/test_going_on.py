"""What is under way when the state is reset: nothing of it is in the new state, and nobody waits for ever."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import pytest

from api_server.state.queue import QUEUE, enqueue
from api_server.status_checks.dispatcher import DISPATCHER
from api_server.testing.quiet import REQUEST_GATE
from api_server.testing.snapshots import SNAPSHOTS
from api_server.web.context import DATABASE
from tests.api_server.status_checks.receiver import hang, running_receiver
from tests.api_server.testing.states import control, put_back, reset
from tests.support.forge import Forge, running_forge
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.runner import a_runner
from tests.support.waiting import until

FILL = """
    INSERT INTO letter_counts (counted, began_at, letters)
    SELECT 'user ' || n, %(now)s, 1 FROM generate_series(1, 5000) n
"""


@attrs.define
class Stuck:
    """A task that goes on until it is told, and then writes."""

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
            async with app[DATABASE].transaction() as transaction:
                await transaction.run("UPDATE users SET name = 'Somebody else'")
            stuck.ended = True

        app[QUEUE].add("tests_hang_about", hang_about, attempts=5)

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
        await until(lambda: "POST /api/v4/projects" in forge.server.app[REQUEST_GATE].inside)
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
        await until(lambda: "POST /api/v4/jobs/request" in forge.server.app[REQUEST_GATE].inside)
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
        assert not forge.server.app[DISPATCHER]._flying
        deliveries = "SELECT count(*) FROM status_check_deliveries"
        assert await forge.database.value(deliveries) == 0


async def test_resets_and_requests_at_once(busy: tuple[Forge, Stuck]) -> None:
    """Everybody is answered: of the state before, of that afterwards, or that the state was reset."""
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
    """The rows that were replaced are let go of; nobody waits for that."""
    forge, _ = busy
    sizes = []
    async with put_back(forge):
        for _ in range(15):
            async with forge.database.transaction() as transaction:
                await transaction.run(FILL)
            await reset(forge)
            await until(forge.server.app[SNAPSHOTS].is_clean)
            sizes.append(await forge.database.value("SELECT pg_relation_size('letter_counts')"))
    assert max(sizes) < 1_000_000, sizes
