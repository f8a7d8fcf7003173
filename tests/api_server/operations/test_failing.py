"""What fails is seen within seconds: in the list that operators get, and in the log, with the reason and no secret."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from api_server.operations.failing import KINDS, failing
from api_server.operations.watch import WATCH
from api_server.state import failures
from api_server.state.database import connect
from api_server.web.context import SERVICES
from tests.api_server.operations.scene import PURGE_TOKEN, SECRET, Scene, failing_scene
from tests.api_server.operations.test_metrics import metrics_of
from tests.support.ci import ci_project
from tests.support.clock import MovedClock
from tests.support.runner import a_runner


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await look():
            await asyncio.sleep(0.05)


@pytest.fixture
async def scene(new_forge: Callable[..., Any], tmp_path: Path) -> AsyncIterator[Scene]:
    async with failing_scene(new_forge, tmp_path) as scene:
        yield scene


async def test_each_part_that_fails_is_seen_with_its_reason(scene: Scene) -> None:
    await scene.break_all()
    await scene.queue_unknown(2)
    expected = {"store", "edge", "mail", "runner", "mirror", "delivery", "task"}

    async def are_seen() -> bool:
        found = {one.kind: one.reason for one in await scene.failing()}
        return expected <= found.keys() and found["task"].startswith("2 ")

    await eventually(are_seen)

    async def are_counted() -> bool:
        shown = await metrics_of(scene.forge)
        return {kind for kind in KINDS if shown["forgelet_failing", kind]} == expected

    await eventually(are_counted)
    found = {one.kind: one for one in await scene.failing()}
    assert list(found) == [kind for kind in KINDS if kind in expected], "what stops most comes first"
    assert (found["store"].name.split(" ")[0], found["store"].reason) == (
        str(scene.store),
        "the object store is unavailable: [Errno 2] its folder is gone.",
    )
    assert found["edge"].name == f"http://127.0.0.1:{scene.nobody}"
    assert "It does not answer (ClientConnectorError)" in found["edge"].reason
    assert found["mail"].name == f"127.0.0.1:{scene.nobody}"
    assert found["mail"].reason.startswith("SMTPConnectError: ")
    assert found["runner"].reason == "1 job waits, and there is no runner that may take them."
    assert "Failed to connect to 127.0.0.1" in found["mirror"].reason
    assert found["delivery"].name.endswith(": QA")
    assert found["delivery"].reason == "No connection: Connection refused."
    assert found["task"].name == "of_another_version"
    assert found["task"].reason == "2 failed for good; the last: TaskNotFound: Task cannot be imported."
    assert all(one.since and one.remedy for one in found.values())
    assert [one for one in map(repr, found.values()) if SECRET in one or PURGE_TOKEN in one] == []


async def test_each_failure_is_one_line_that_says_what_and_why(scene: Scene) -> None:
    await scene.break_all()
    await scene.queue_unknown(1)
    events = ("delivery failed", "mirror run failed", "a task failed", "an edge cannot be told")
    parts = {"store", "edge"}

    async def are_told() -> bool:
        tasks = {line["task"] for line in scene.warnings("a task failed")}
        fails = {line["part"] for line in scene.warnings("a part fails")}
        return (
            all(scene.warnings(event) for event in events)
            and fails == parts
            and tasks == {"send_mail", "of_another_version"}
        )

    await eventually(are_told)
    delivery = _deliveries(scene)[0]
    assert (delivery["host"], delivery["attempt"]) == ("127.0.0.1", 1)
    assert delivery["reason"] == "No connection: Connection refused"
    (mirror, *_) = scene.warnings("mirror run failed")
    assert (mirror["host"], mirror["status"]) == ("127.0.0.1", "to_retry")
    assert "Failed to connect" in mirror["reason"]
    (mail, *more) = [line for line in scene.warnings("a task failed") if line["task"] == "send_mail"]
    assert f"127.0.0.1:{scene.nobody}" in mail["reason"]
    assert (mail["attempt"], mail["again"]) == (1, True)
    assert [one["attempt"] for one in more] == list(range(2, 2 + len(more))), "one line an attempt"
    (unknown,) = [line for line in scene.warnings("a task failed") if line["task"] == "of_another_version"]
    assert not unknown["again"]
    attempts = await scene.forge.database.value("SELECT sum(attempts) FROM status_check_deliveries")
    assert len(_deliveries(scene)) in (attempts, attempts + 1)


def _deliveries(scene: Scene) -> list[MutableMapping[str, Any]]:
    """Lines about those that failed; the server that all tests share may go on with its own, to elsewhere."""
    return [line for line in scene.warnings("delivery failed") if line["host"] == "127.0.0.1"]


async def test_what_works_again_is_not_listed_any_more(scene: Scene) -> None:
    elsewhere = scene.store.with_name("elsewhere")

    async def fails() -> bool:
        await scene.forge.server.app[SERVICES][WATCH].look()
        return bool(await scene.failing("store"))

    async def works() -> bool:
        return not await fails()

    scene.store.rename(elsewhere)
    await eventually(fails)
    elsewhere.rename(scene.store)
    await eventually(works)
    assert "a part works again" in [line["event"] for line in scene.lines]


async def test_work_that_keeps_ending_is_listed(scene: Scene) -> None:
    ended = asyncio.Event()

    async def ends() -> None:
        ended.set()
        raise OSError("the tape is torn")

    background = scene.forge.server.app[SERVICES].background
    background.start("tape", ends)
    await ended.wait()
    await eventually(lambda: _is_down(scene, "tape"))
    await background.finish("tape", 0)


async def _is_down(scene: Scene, name: str) -> bool:
    await scene.forge.server.app[SERVICES][WATCH].look()
    found = [one for one in await scene.failing("background") if one.name.startswith(name)]
    return bool(found) and found[0].reason == "OSError: the tape is torn."


async def test_what_a_process_said_counts_while_it_lives(new_database: Callable[[], str]) -> None:
    clock = MovedClock()
    async with connect(new_database(), base_url="http://forge.example.org", clock=clock) as database:
        async with database.transaction() as transaction:
            await failures.note(transaction, "store", "bucket", "It is gone", "one:8080")
            await failures.note(transaction, "mail", "smtp:25", "It is gone")
        assert [one.name for one in await failing(database, database.now)] == ["bucket (one:8080)", "smtp:25"]
        clock.move(seconds=61)
        assert [one.name for one in await failing(database, database.now)] == ["smtp:25"]


def test_a_reason_is_one_bounded_line_without_secrets() -> None:
    told = failures.shortened(f"https://alice:{SECRET}@example.org\n said\0: {'no ' * 1000}")
    assert SECRET not in told
    assert "\n" not in told
    assert len(told) == 500


async def test_a_runner_that_dies_with_a_job_in_its_hands_is_listed(scene: Scene) -> None:
    """Until it speaks again; where the service itself was away, nobody can know."""
    project = await ci_project(scene.forge)
    await project.pipeline()
    running = await (await a_runner(scene.forge, description="box")).job()
    database = scene.forge.database

    async def age(statement: str) -> list[str]:
        async with database.transaction() as transaction:
            await transaction.run(statement)
        return [f"{one.name}: {one.reason}" for one in await scene.failing("runner")]

    assert await age(SILENT_FOR_LONG) == []
    (told,) = await age(HEARD_BY_THEN)
    assert told.startswith("box (no. ")
    assert f": 1 job is in its hands, such as job {running.id} of {project.path}, and it has" in told
    await running.log(b"Still here\n")
    assert await scene.failing("runner") == []


SILENT_FOR_LONG = (
    "UPDATE jobs SET contacted_at = %(now)s::timestamptz - interval '301 seconds' WHERE status = 'running'"
)
HEARD_BY_THEN = """
    INSERT INTO runner_watch VALUES (true, %(now)s, %(now)s::timestamptz - interval '302 seconds')
    ON CONFLICT (one) DO UPDATE SET listening_since = excluded.listening_since
"""
