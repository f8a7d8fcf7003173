"""Commands about what fails: listed with the reason, tried again, removed; for people and for programs."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api_server.operations.scene import PURGE_TOKEN, SECRET, Scene, failing_scene
from tests.forgelet.test_doctor_sees import environment
from tests.support.forge import running_forge
from tests.support.preloaded import Ended, Programs, preloaded

PARTS = ("outgoing", "database", "edge")


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with preloaded("forgelet.command_line", *(f"forgelet.commands.{part}" for part in PARTS)) as programs:
        yield programs


@pytest.fixture(scope="module")
async def scene(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    """Where all fails."""
    folder = tmp_path_factory.mktemp("failing")

    def forge(**settings: Any) -> Any:
        return running_forge(new_database(), settings.pop("data_dir"), **settings)

    async with failing_scene(forge, folder) as scene:
        await scene.break_all()
        await scene.queue_unknown(3)
        async with asyncio.timeout(30):
            while not {"mirror", "delivery", "task"} <= {one.kind for one in await scene.failing()}:
                await asyncio.sleep(0.05)
        yield scene


@pytest.fixture
def run(scene: Scene, programs: Programs, tmp_path: Path) -> Callable[..., Any]:
    """Runs a command in a process of its own; nothing secret is ever said."""

    async def run(*arguments: str) -> Ended:
        given = {"HOME": str(tmp_path), **environment(scene)}
        ended = await asyncio.to_thread(programs.run, "forgelet", arguments, given, folder=tmp_path)
        assert SECRET not in ended.output + ended.errors
        assert PURGE_TOKEN not in ended.output + ended.errors
        return ended

    return run


async def test_failing_mirrors_are_listed_and_run_again(scene: Scene, run: Callable[..., Any]) -> None:
    listed = json.loads((await run("mirror", "list", "--failing", "--json")).output)
    assert [one["last_error"] for one in listed] != []
    assert "Failed to connect" in listed[0]["last_error"]
    shown = (await run("mirror", "list")).output
    assert shown.splitlines()[0].split()[:3] == ["ID", "PROJECT", "URL"]
    assert listed[0]["project"] in shown
    ended = await run("mirror", "sync", str(listed[0]["id"]), "999999")
    assert ended.status == 1
    assert "runs soon" in ended.output
    assert "there is none of this id" in ended.output


async def test_failing_deliveries_are_listed_and_sent_again(scene: Scene, run: Callable[..., Any]) -> None:
    listed = json.loads((await run("delivery", "list", "--failing", "--json")).output)
    assert listed[0]["check"] == "QA"
    assert "Connection refused" in listed[0]["problem"]
    number = listed[0]["id"]
    ended = await run("delivery", "retry", str(number))
    assert (ended.status, ended.errors) == (0, "")
    events = await scene.forge.database.rows(
        "SELECT details FROM audit_events WHERE event_type = 'status_check_delivery_redelivered'"
    )
    assert [json.loads(event.details)["delivery_id"] for event in events] == [str(number)]


async def test_failed_tasks_are_listed_tried_again_and_removed(scene: Scene, run: Callable[..., Any]) -> None:
    async with asyncio.timeout(30):
        while True:
            listed = json.loads((await run("task", "list", "--failing", "--json")).output)
            failed = [one for one in listed if one["name"] == "of_another_version"]
            if len(failed) == 3 and all(one["reason"] for one in failed):
                break
    assert "TaskNotFound" in failed[0]["reason"]
    ended = await run("task", "cancel", str(failed[0]["id"]))
    assert (ended.status, ended.errors) == (0, "")
    ended = await run("task", "cancel", str(failed[0]["id"]))
    assert ended.status == 1
    assert "it has been done, or was removed" in ended.output
    ended = await run("task", "retry", "--failed", "--name", "of_another_version", "--json")
    assert {one["id"] for one in json.loads(ended.output)} == {one["id"] for one in failed[1:]}
    ended = await run("task", "retry")
    assert (ended.status, ended.output) == (2, "")
    assert ended.errors == "Error: Name tasks by their ids, or all with --failed, perhaps of one --name\n"


async def test_edges_that_do_not_answer_are_told_of(scene: Scene, run: Callable[..., Any]) -> None:
    for arguments in (("status",), ("list",), ("purge", "--everything")):
        ended = await run("edge", *arguments)
        assert ended.status == 1
        assert "It cannot be reached: " in ended.output + ended.errors
    assert (await run("edge", "purge")).errors.startswith("Error: Say what is to be purged")
    ended = await run("edge", "purge", "--project", "none/there")
    assert (ended.status, ended.output) == (2, "")
    assert "There is no project none/there" in ended.errors


async def test_edge_is_the_process_too(run: Callable[..., Any]) -> None:
    assert "--origin-flavour" in (await run("edge", "--help")).output
    ended = await run("edge", "--port", "99999")
    assert (ended.status, ended.errors) == (
        2,
        "Error: --port has to be a whole number from 0 to 65535\n",
    )
