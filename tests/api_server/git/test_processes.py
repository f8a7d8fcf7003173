"""How git children are started and ended: none is left behind, whoever cancels it, and at whatever moment."""

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from api_server.git import processes, spawning
from api_server.git.commits import History, history
from api_server.git.errors import GitError, GitTimeoutError, OutputTooLargeError
from api_server.git.processes import Child, run, start
from api_server.git.remote.access import Access, Remote, RemoteGit
from api_server.git.repositories import Repositories
from api_server.git.spawning import child_environment
from tests.api_server.git.conftest import PROJECT, commit
from tests.api_server.git.sleeper import Sleeper
from tests.support.processes import runs
from tests.support.waiting import until


async def test_output_and_input_pass_through() -> None:
    output = await run(["hash-object", "--stdin"], stdin=b"hello\n")
    assert output.stdout.decode().strip() == "ce013625030ba8dba906f756967f9e9ca394464a"


async def test_a_conversation_is_read_piece_by_piece_and_not_beyond_its_limit() -> None:
    echo = [("alias.echo", "!read line; echo $line; read line; echo $line; exit 3")]
    async with start(["echo"], configuration=echo, with_stdin=True) as child:
        child.write(b"first\n")
        assert await child.read_until(b"\n") == b"first\n"
        child.write(b"second\n")
        with pytest.raises(OutputTooLargeError):
            await child.read_until(b"never", limit=3)
        with pytest.raises(GitError, match="ended with status 3"):
            await child.read_until(b"never")


async def test_a_failure_says_what_git_said_without_secrets() -> None:
    url = "https://alice:hunter2@localhost:1/x.git"
    with pytest.raises(GitError) as raised:
        await run(["ls-remote", url])
    assert "ls-remote" in str(raised.value)
    assert "hunter2" not in str(raised.value)
    careless = [("alias.careless", f"!echo fatal: no {url} >&2; exit 1")]
    with pytest.raises(GitError, match="fatal: no https://") as raised:
        await run(["careless"], configuration=careless)
    assert "hunter2" not in str(raised.value)


async def test_an_accepted_status_is_no_failure(tmp_path: Path) -> None:
    assert (await run(["config", "--file", str(tmp_path / "x"), "a.b"], accept=(0, 1))).returncode == 1


async def test_no_transport_starts_unless_allowed(tmp_path: Path) -> None:
    await run(["init", "-q", "--bare", str(tmp_path / "x.git")])
    with pytest.raises(GitError, match="not allowed"):
        await run(["ls-remote", str(tmp_path / "x.git")])
    allowed = [("protocol.file.allow", "always")]
    assert (await run(["ls-remote", str(tmp_path / "x.git")], configuration=allowed)).stdout == b""


async def test_the_time_limit_kills_the_whole_group() -> None:
    sleeper = Sleeper()
    async with asyncio.timeout(60):  # it sleeps for longer
        with pytest.raises(GitTimeoutError):
            await run(["sleeper"], configuration=sleeper.configuration, time_limit=0.3)
    assert not sleeper.running()


@pytest.mark.parametrize("held", ["stderr", "stdout and stderr"])
async def test_the_time_limit_also_ends_what_git_has_left_behind(held: str) -> None:
    """A descendant that holds git's output open does not extend the wait for git."""
    sleeper = Sleeper()
    closed = ">/dev/null" if held == "stderr" else ""
    left_behind = [("alias.sleeper", f"!sleep {sleeper.seconds} {closed} & :")]
    async with asyncio.timeout(60):
        with pytest.raises(GitTimeoutError):
            await run(["sleeper"], configuration=left_behind, time_limit=0.3)
    await sleeper.gone()


async def test_leaving_the_block_ends_what_git_has_left_behind() -> None:
    sleeper = Sleeper()
    left_behind = [("alias.sleeper", f"!sleep {sleeper.seconds} & :")]
    async with start(["sleeper"], configuration=left_behind) as child:
        # the sleep may begin a moment after git has ended
        await until(lambda: child.process.returncode is not None and sleeper.running())
    await sleeper.gone()


async def test_leaving_the_block_ends_the_whole_group() -> None:
    sleeper = Sleeper()
    async with start(["sleeper"], configuration=sleeper.configuration):
        await until(lambda: sleeper.running() == 2)
    assert not sleeper.running()


async def test_output_beyond_the_limit_is_not_kept() -> None:
    with pytest.raises(OutputTooLargeError):
        await run(["help", "-a"], output_limit=100)


async def test_what_git_says_on_stderr_is_bounded() -> None:
    noisy = (("alias.noisy", "!head -c 3000000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 3"),)
    with pytest.raises(GitError) as raised:
        await run(["noisy"], configuration=noisy)
    assert len(raised.value.stderr) <= 16 * 1024
    assert raised.value.stderr.endswith("end\n")


async def test_a_body_that_breaks_off_ends_git_and_is_raised() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"part"
        raise ConnectionAbortedError

    async with start(["hash-object", "--stdin"], with_stdin=True) as child:
        child.feed(body())
        with pytest.raises(ConnectionAbortedError):
            assert [chunk async for chunk in child.output()] == []


def test_the_environment_of_the_server_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    made = child_environment({"GIT_PROTOCOL": "version=2"}, [("a.b", "c")])
    assert "GIT_DIR" not in made
    assert "hunter2" not in made.values()
    last = int(made["GIT_CONFIG_COUNT"]) - 1
    assert (made[f"GIT_CONFIG_KEY_{last}"], made[f"GIT_CONFIG_VALUE_{last}"]) == ("a.b", "c")


async def test_a_body_is_read_to_its_end_although_git_has_heard_enough() -> None:
    """A client reads the answer only after it has sent everything."""
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(50):
            sent += 1
            yield b"x" * 65536

    async with start(["version"], with_stdin=True) as child:
        child.feed(body())
        answer = b"".join([chunk async for chunk in child.output()])
    assert answer.startswith(b"git version")
    assert sent == 50


def test_a_body_goes_on_after_git_has_ended_on_the_loop_of_the_server() -> None:
    """This loop reports it with another error than asyncio's own."""
    ended = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"x"
        await ended.wait()
        for _ in range(10):
            yield b"x" * 65536
            await asyncio.sleep(0)

    async def speak() -> bytes:
        async with start(["version"], with_stdin=True) as child:
            child.feed(body())
            await child.process.wait()
            await asyncio.sleep(0)
            ended.set()
            return await child.whole_output()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(speak()).startswith(b"git version")


_PRIORITY = (("alias.told", "!nice; cat /proc/$$/autogroup 2>/dev/null || true"),)
_OURS = int(subprocess.run(["nice"], capture_output=True, check=True).stdout)


def _steps(told: bytes) -> int:
    """Return by how much the priority of this git is below ours, in its `nice` and, if there is one, in that of its
    session."""
    nice, *autogroup = told.decode().splitlines()
    steps = int(nice) - _OURS
    assert all(int(line.rpartition(" ")[2]) == steps for line in autogroup)
    return steps


async def test_what_users_wait_for_gives_way_to_nobody_and_background_work_to_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spawning, "_MAX_FIRST", 1000)
    assert _steps((await run(["told"], configuration=_PRIORITY)).stdout) == 0
    assert _steps((await run(["told"], configuration=_PRIORITY, background=True)).stdout) == 10


async def test_of_many_gits_those_beyond_the_processors_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the shared server count too: its running ones may use up the normal priority."""
    monkeypatch.setattr(spawning, "_MAX_FIRST", spawning._first + 1)
    told = partial(start, ["told"], configuration=_PRIORITY)
    async with told() as first, told() as second:
        assert _steps(await first.whole_output()) == 0
        assert _steps(await second.whole_output()) == 10
    assert _steps((await run(["told"], configuration=_PRIORITY)).stdout) == 0


async def test_a_git_that_takes_long_gives_way_with_all_that_it_has_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(spawning, "_MAX_FIRST", 1000)
    monkeypatch.setattr(processes, "LONG_SECONDS", 0.05)
    script = tmp_path / "wait"
    script.write_text(
        f"while [ $(nice) = {_OURS} ]; do sleep 0.02; done; nice; cat /proc/$$/autogroup 2>/dev/null || true\n"
    )
    alias = (("alias.told", f"!sh {script}"),)
    assert _steps((await run(["told"], configuration=alias)).stdout) == 10


async def test_whatever_git_starts_has_limits_of_memory_processor_time_and_no_core_dump() -> None:
    told = await run(["limits"], configuration=[("alias.limits", "!ulimit -d; ulimit -t; ulimit -c")])
    assert told.stdout.split() == [b"524288", b"900", b"0"]  # KiB, seconds


def test_no_python_runs_in_a_child_before_it_is_git() -> None:
    """A child that is forked while another thread enters the interpreter may wait for that thread for ever, and the
    loop for the child."""
    forks: list[int] = []
    os.register_at_fork(before=lambda: forks.append(1))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(["version"]))
    assert forks == []


async def test_a_git_that_cannot_be_watched_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be one descriptor too few."""
    watched: list[int] = []

    def none_left(pid: int) -> int:
        watched.append(pid)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        await run(["version"])
    with pytest.raises(ChildProcessError):
        os.waitpid(watched[0], os.WNOHANG)


async def test_neither_credentials_nor_control_characters_are_shown() -> None:
    remote = Remote("https://example.org/x.git", user="alice", password="hunter2")
    git = RemoteGit(remote, Access(remote.url, (), {}, Path("/nonexistent")), time_limit=1)
    said = "remote: \x1b[31mhunter2\x07 is \u202ewrong\r\nfor alice\n"
    assert git.clean(said) == "remote: [31m***** is wrong\nfor *****"


async def test_hooks_that_lie_in_a_repository_do_not_run(repositories: Repositories) -> None:
    hook = repositories.path(PROJECT) / "hooks" / "reference-transaction"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    sha = await commit(repositories, "main", None, readme=b"moved all the same")
    assert str(repositories.open(PROJECT).lookup_reference("refs/heads/main").target) == sha


async def test_a_commit_that_was_replaced_shows_what_it_was(repositories: Repositories) -> None:
    first = await commit(repositories, "main", None, file=b"first")
    second = await commit(repositories, "main", first, other=b"second")
    repositories.open(PROJECT).references.create(f"refs/replace/{first}", second)
    files = await run(["ls-tree", "--name-only", first], repository=repositories.path(PROJECT))
    assert files.stdout == b"file\n"


async def test_a_path_is_no_pattern(repositories: Repositories) -> None:
    sha = await commit(repositories, "main", None, file=b"content")
    repository = repositories.open(PROJECT)
    assert await history(repository, History(start=sha, path="file"), skip=0, limit=9) == [sha]
    for pattern in ("f*", ":(glob)f*", ":/file"):
        assert await history(repository, History(start=sha, path=pattern), skip=0, limit=9) == []


@pytest.mark.parametrize("place", ["HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"])
async def test_configuration_of_the_machine_is_not_read(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[forgelet]\n\tseen = yes\n"
    (tmp_path / "git").mkdir()
    for file in (".gitconfig", "git/config", "config"):
        (tmp_path / file).write_text(text)
    monkeypatch.setenv(place, str(tmp_path / "config" if place.startswith("GIT") else tmp_path))
    assert (await run(["config", "--get", "forgelet.seen"], accept=(0, 1))).stdout == b""


STRACE = shutil.which("strace")
A_GIT = """
from api_server.git.processes import run

async def main():
    await run(["hash-object", "--stdin"], stdin=b"x")
"""
A_PUSH_THAT_WAITS = """
import os
from api_server.git.receive_pack import push_gate

async def main():
    with push_gate() as gate:
        os.write(gate.childs_ends[0], b"/q\\n")
        gate.let_go()
        await gate.question()
        await gate.accept()
"""
RUN = """
import asyncio, {module}
with asyncio.Runner(loop_factory={module}.new_event_loop) as runner:
    runner.run(main())
"""


@pytest.mark.parametrize("module", ["asyncio", "uvloop"])
@pytest.mark.parametrize("program", [A_GIT, A_PUSH_THAT_WAITS], ids=["git", "gate"])
def test_no_descriptor_is_closed_twice(program: str, module: str, tmp_path: Path) -> None:
    if STRACE is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    code = program + RUN.format(module=module)
    command = [STRACE, "-e", "trace=close", "-o", str(trace), sys.executable, "-c", code]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    closed = trace.read_text()
    assert "close(" in closed
    assert "EBADF" not in closed


RunOnLoop = Callable[[Coroutine[Any, Any, None]], None]

SECONDS = 60
#: Steps of the event loop that begin and complete the start of a process, and some more.
STEPS = 12


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> RunOnLoop:
    """A function that runs a test's coroutine on a loop of this kind; it raises TimeoutError if this takes too long."""

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
    """A process that git leaves behind in a session of its own holds its stdin open, whose buffers are full."""

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
    """A process that git leaves behind in a session of its own keeps its output open, so that its end takes a
    moment."""

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


# A git whose own child does not end by itself: neither when a pipe is closed, nor (with "stubborn") by SIGTERM.
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
