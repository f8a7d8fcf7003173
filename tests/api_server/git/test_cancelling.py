"""No git is left behind: by a caller who is cancelled, at whatever moment and on either loop, or by a killed parent."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from api_server.git.processes import Child, run, start
from tests.api_server.git.sleeper import Sleeper
from tests.support.waiting import until

RunOnLoop = Callable[[Coroutine[Any, Any, None]], None]

SECONDS = 60
#: Steps of the event loop that begin and complete the start of a process, and some more.
STEPS = 12


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> RunOnLoop:
    """Runs a test's coroutine on a loop of this kind; raises TimeoutError when it takes too long."""

    def run_it(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(test, SECONDS))

    return run_it


@pytest.mark.parametrize("steps", range(1, STEPS))
@pytest.mark.parametrize("times", [1, 2])
def test_a_caller_cancelled_while_git_is_being_started_leaves_no_process(
    on_loop: RunOnLoop, steps: int, times: int
) -> None:
    async def test() -> None:
        sleeper = Sleeper()
        task = asyncio.create_task(run(["sleeper"], configuration=sleeper.configuration, stdin=b"unread"))
        for _ in range(steps):
            await asyncio.sleep(0)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not sleeper.left()

    on_loop(test())


def test_a_cancelled_caller_leaves_no_process(on_loop: RunOnLoop) -> None:
    async def test() -> None:
        sleeper = Sleeper()
        task = asyncio.create_task(run(["sleeper"], configuration=sleeper.configuration))
        await until(lambda: sleeper.running() >= 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not sleeper.left()

    on_loop(test())


def test_a_caller_who_has_not_read_all_need_not_wait(
    on_loop: RunOnLoop,
) -> None:
    async def test() -> None:
        talking = asyncio.Event()

        async def listen_to_the_beginning() -> None:
            async with start(["yes"], configuration=[("alias.yes", "!yes")]) as child:
                await child.read_until(b"y\n")
                talking.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(listen_to_the_beginning())
        await talking.wait()
        await asyncio.sleep(0.1)  # the pipe and the buffers fill
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    on_loop(test())


def test_a_git_that_feeds_another_ends_with_it(
    on_loop: RunOnLoop,
) -> None:
    """It does not wait for the garbage collector."""

    async def test() -> None:
        feeder, eater = Sleeper(), Sleeper()

        async def noise() -> AsyncIterator[bytes]:
            async with start(["sleeper"], configuration=feeder.configuration):
                while True:
                    yield b"x" * 2**20

        async def feed() -> None:
            async with start(["sleeper"], configuration=eater.configuration, with_stdin=True) as child:
                child.feed(noise())
                await child.whole_output()

        task = asyncio.create_task(feed())
        await until(lambda: feeder.running() >= 2 and eater.running() >= 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not eater.left()
        assert not feeder.left()

    on_loop(test())


def test_what_nobody_has_read_keeps_no_stream_open(on_loop: RunOnLoop) -> None:
    """What git leaves behind in a session of its own holds its stdin, whose buffers are full."""

    async def test() -> None:
        async def noise() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 2**20

        left = "!exec 3<&0; setsid sh -c 'echo $$; exec sleep 987 >/dev/null 2>&1' <&3 & wait"
        async with start(["leaver"], configuration=[("alias.leaver", left)], with_stdin=True) as child:
            sleeping = int(await child.read_until(b"\n"))
            child.feed(noise())
            stdin = child.process.stdin
            assert stdin is not None
            await until(stdin.transport.get_write_buffer_size)
        try:
            await asyncio.wait_for(stdin.wait_closed(), SECONDS / 2)
        finally:
            os.kill(sleeping, signal.SIGKILL)

    on_loop(test())


def test_who_is_cancelled_again_and_again_leaves_neither_tasks_nor_streams(on_loop: RunOnLoop) -> None:
    """What git leaves behind in a session of its own keeps its output open, so that its end takes a moment."""

    async def test() -> None:
        left: list[int] = []
        children: list[Child] = []

        async def listen() -> None:
            alias = "!setsid sh -c 'echo $$; exec sleep 987' & wait"
            async with start(["leaver"], configuration=[("alias.leaver", alias)], with_stdin=True) as child:
                children.append(child)
                left.append(int(await child.read_until(b"\n")))
                await asyncio.Event().wait()

        before = asyncio.all_tasks()
        task = asyncio.create_task(listen())
        await until(lambda: left)
        try:
            while not task.done():
                task.cancel()
                await asyncio.sleep(0.01)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert asyncio.all_tasks() == before
            stdin = children[0].process.stdin
            assert stdin is not None
            assert stdin.is_closing()
        finally:
            os.kill(left[0], signal.SIGKILL)

    on_loop(test())


# A git whose own child does not end by itself: neither by a closed pipe, nor (with "stubborn") by SIGTERM.
PARENT = """
import asyncio, sys
from api_server.git import processes, spawning

async def main():
    spawning.GRACE_SECONDS = 0.2
    trap = "trap '' TERM;" if sys.argv[1] == "stubborn" else ""
    hang = f"!{trap} echo $$; exec sleep 60"
    async with processes.start(["hang"], configuration=[("alias.hang", hang)]) as child:
        print(child.pid, (await child.read_until(b"\\n")).decode(), flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc here")
@pytest.mark.parametrize("kind", ["obedient", "stubborn"])
async def test_git_and_what_it_has_started_end_when_their_parent_is_killed(kind: str) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, kind, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert parent.stdout is not None
    line = await asyncio.wait_for(parent.stdout.readline(), 20)
    pids = [int(pid) for pid in line.split()]
    assert len(pids) == 2
    assert all(map(runs, pids))
    parent.kill()
    await parent.wait()
    try:
        await until(lambda: not any(map(runs, pids)))
    finally:
        for pid in filter(runs, pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def runs(pid: int) -> bool:
    """Whether the process is there, and more than an entry in the table that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False
