"""The only place where git and other programs are started: process groups, time limits, stderr, termination, and the
version of git."""

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import attrs

from api_server.git import spawning
from api_server.git.errors import GitTimeoutError, OutputTooLargeError, git_error
from api_server.git.spawning import (
    LONG_SECONDS,
    Process,
    child_environment,
    give_way,
    limited,
    priority_turn,
    spawn,
)
from common.concurrency import end, ended
from common.config_errors import ConfigError
from common.logs import redact

CHUNK_BYTES = 128 * 1024
STDERR_BYTES = 16 * 1024
OUTPUT_BYTES = 64 * 1024 * 1024
TIME_LIMIT_SECONDS = 60.0
#: Seconds between SIGTERM, on which git removes its lock files, and SIGKILL.
GRACE_SECONDS = 5.0
#: Seconds for which a killed process may keep its output open. Only a process outside of git's group takes longer.
KILLED_SECONDS = 1.0
#: Seconds for which the rest of a body is read after git has closed its output.
DRAIN_SECONDS = 30.0


@attrs.frozen
class Output:
    """The status and the output of a git that has ended."""

    returncode: int
    stdout: bytes


class Child:
    """A running git. `output()` yields its stdout; `end()` waits for it to end."""

    def __init__(self, command: str, process: Process, exit_timeout: float) -> None:
        self.command = command
        self.exit_timeout = exit_timeout
        self.process = process
        self.pid = process.pid
        self.timed_out = False
        self._stderr = bytearray()
        self._stderr_task = asyncio.create_task(self._keep_stderr())
        self._feed_task: asyncio.Task[None] | None = None

    @property
    def stderr(self) -> str:
        """The last 16 KiB that git wrote to its standard error, without URL credentials and tokens."""
        return redact(self._stderr.decode(errors="replace"))

    def feed(self, body: AsyncIterable[bytes]) -> None:
        """Write `body` to git's stdin in a task, no faster than git reads it."""
        self._feed_task = asyncio.create_task(self._pump(body))

    def write(self, data: bytes) -> None:
        """Write a few bytes to git's stdin, which stays open."""
        cast("asyncio.StreamWriter", self.process.stdin).write(data)

    async def read_until(self, end: bytes, limit: int = OUTPUT_BYTES) -> bytes:
        """Return git's stdout up to and including `end`, after which git waits for more input.

        Raise `GitError` if git ends before that, and `OutputTooLargeError` beyond `limit` bytes.
        """
        stdout = self.process.stdout
        received = bytearray()
        while not received.endswith(end):
            chunk = await stdout.read(CHUNK_BYTES)
            if not chunk:
                raise git_error(self.command, await self.end(), self.stderr)
            received += chunk
            self._check_size(received, limit)
        return bytes(received)

    async def whole_output(self, limit: int = OUTPUT_BYTES) -> bytes:
        """Return all that git prints. Raise `OutputTooLargeError` beyond `limit` bytes, and the errors of `output`."""
        collected = bytearray()
        async for chunk in self.output():
            collected += chunk
            self._check_size(collected, limit)
        return bytes(collected)

    def _check_size(self, output: bytearray, limit: int) -> None:
        if len(output) > limit:
            raise OutputTooLargeError(self.command, None, f"more than {limit} bytes of output")

    async def output(self) -> AsyncIterator[bytes]:
        """Yield git's stdout as it arrives. Raise `GitTimeoutError`, and the error that reading the fed body raised."""
        stdout = self.process.stdout
        while chunk := await stdout.read(CHUNK_BYTES):
            yield chunk
        if self.timed_out:
            raise GitTimeoutError(self.command, None, self.stderr)
        if self._feed_task is not None:
            done, _ = await asyncio.wait({self._feed_task}, timeout=DRAIN_SECONDS)
            for task in done:
                task.result()

    async def checked_output(self) -> AsyncIterator[bytes]:
        """Yield git's stdout like `output`. Raise `GitError` at the end unless git succeeded, so that an incomplete
        output is an error."""
        async for chunk in self.output():
            yield chunk
        await self.check()

    async def end(self) -> int:
        """Wait until git has ended and its stderr is closed. Return its status (negative: a signal). Raise
        `GitTimeoutError`."""
        status = await self.process.wait()
        await asyncio.wait({self._stderr_task})
        if self.timed_out:
            raise GitTimeoutError(self.command, status, self.stderr)
        return status

    async def check(self) -> None:
        """Wait like `end`, and raise `GitError` unless the status is 0."""
        if status := await self.end():
            raise git_error(self.command, status, self.stderr)

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to git and to all processes that it has started. Do nothing if they have ended."""
        if self._lives():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def expire(self) -> None:
        """Kill git, and processes that it has left behind, which may keep its output open. Reading the output then
        raises `GitTimeoutError`."""
        if self._lives():
            self.timed_out = True
            self.signal_group(signal.SIGKILL)
            self._stderr_task.cancel()

    def give_way(self) -> None:
        """Lower the child's priority after it has run for a while."""
        if self._lives():
            give_way(self.pid)

    def _lives(self) -> bool:
        return self.process.returncode is None or not self._stderr_task.done()

    async def stop(self) -> None:
        """End git if it still runs. Afterwards none of its processes and tasks are left."""
        exited = asyncio.create_task(self.process.wait())
        tasks = {exited, self._stderr_task, asyncio.create_task(self._discard_output())}
        if self._feed_task is not None:
            self._feed_task.cancel()
            tasks.add(self._feed_task)
        try:
            if self.exit_timeout:
                await asyncio.wait({exited}, timeout=self.exit_timeout)
            self.signal_group(signal.SIGTERM)
            await asyncio.wait({exited}, timeout=GRACE_SECONDS)
        finally:  # also if the waiting task is cancelled, however often
            self.signal_group(signal.SIGKILL)
            await ended(asyncio.create_task(self._let_go(tasks)))

    async def _let_go(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        try:
            await asyncio.wait(tasks, timeout=KILLED_SECONDS)
            await end(*tasks)
        finally:
            self.process.close()

    async def _discard_output(self) -> None:
        """Read the output to its end. Otherwise git would wait for a reader, and asyncio for the end of the output."""
        stdout = self.process.stdout
        while await stdout.read(CHUNK_BYTES):
            pass

    async def _pump(self, body: AsyncIterable[bytes]) -> None:
        stdin = cast("asyncio.StreamWriter", self.process.stdin)
        is_read = True
        try:
            async for chunk in body:
                if not is_read or stdin.is_closing():
                    is_read = False
                    # git has closed its stdin, but many clients read the answer only after they have sent everything.
                    continue
                try:
                    stdin.write(chunk)
                    await stdin.drain()
                except (BrokenPipeError, ConnectionResetError):
                    is_read = False
        except Exception:
            if not self.exit_timeout:
                self.signal_group(signal.SIGTERM)
            raise
        finally:
            with suppress(BrokenPipeError, ConnectionResetError):
                stdin.close()
            if isinstance(body, AsyncGenerator):  # closing it ends another git that it may read from
                await body.aclose()

    async def _keep_stderr(self) -> None:
        stderr = self.process.stderr
        while chunk := await stderr.read(STDERR_BYTES):
            self._stderr += chunk
            del self._stderr[:-STDERR_BYTES]


@asynccontextmanager
async def start(
    arguments: Sequence[str],
    *,
    repository: Path | None = None,
    extra_environment: Mapping[str, str] | None = None,
    configuration: Sequence[tuple[str, str]] = (),
    with_stdin: bool = False,
    time_limit: float | None = None,
    exit_timeout: float = 0.0,
    pass_fds: Sequence[int] = (),
    background: bool = False,
) -> AsyncIterator[Child]:
    """Run `git <arguments>` in a process group of its own for the duration of the block.

    `repository` becomes `--git-dir`. `configuration` follows `CHILD_CONFIGURATION`, and so overrides it. Secrets
    belong in `extra_environment`, never in arguments, which every user of the machine can read. After `time_limit`
    seconds, the whole group is killed and `GitTimeoutError` is raised. At the end of the block, whatever still runs is
    ended: at once, or after `exit_timeout` seconds in which git can notice the end of its stdin. git and all that it
    starts inherit the descriptors `pass_fds`, and are subject to its limits (`ChildLimits`). A `background` child has
    a lower priority from the beginning.
    """
    git_dir = [f"--git-dir={repository}"] if repository is not None else []
    async with start_program(
        ["git", *git_dir, *arguments],
        name=arguments[0],
        environment=child_environment(extra_environment, configuration),
        with_stdin=with_stdin,
        time_limit=time_limit,
        exit_timeout=exit_timeout,
        pass_fds=pass_fds,
        background=background,
    ) as child:
        yield child


@asynccontextmanager
async def start_program(
    command: Sequence[str],
    *,
    name: str,
    environment: Mapping[str, str],
    with_stdin: bool = False,
    time_limit: float | None = None,
    exit_timeout: float = 0.0,
    pass_fds: Sequence[int] = (),
    background: bool = False,
) -> AsyncIterator[Child]:
    """Run any program like `start`. Errors call it `name`."""
    loop = asyncio.get_running_loop()
    with priority_turn(background=background) as gives_way:
        starting = asyncio.create_task(
            spawn(
                limited(command, gives_way=gives_way),
                with_stdin=with_stdin,
                limit=CHUNK_BYTES,
                env={**environment, **spawning.orphan_mark()},
                cwd="/",
                start_new_session=True,
                pass_fds=pass_fds,
            )
        )
        cancelled = await _completion(starting)
        child = Child(name, starting.result(), exit_timeout)
        timers = [loop.call_later(LONG_SECONDS, child.give_way)]
        if time_limit is not None:
            timers.append(loop.call_later(time_limit, child.expire))
        try:
            if cancelled is not None:
                raise cancelled
            yield child
        finally:
            for timer in timers:
                timer.cancel()
            await child.stop()


async def _completion(starting: asyncio.Task[Any]) -> asyncio.CancelledError | None:
    """Wait until the process has started, even if the caller is cancelled meanwhile. Return that cancellation, or
    None.

    Interrupting a start would kill at most the process itself, but not the processes that it has started.
    """
    cancelled = None
    while not starting.done():
        try:
            await asyncio.wait({starting})
        except asyncio.CancelledError as problem:
            cancelled = problem
    return cancelled


async def run(
    arguments: Sequence[str],
    *,
    repository: Path | None = None,
    extra_environment: Mapping[str, str] | None = None,
    configuration: Sequence[tuple[str, str]] = (),
    stdin: bytes = b"",
    time_limit: float = TIME_LIMIT_SECONDS,
    accept: Sequence[int] = (0,),
    output_limit: int = OUTPUT_BYTES,
    pass_fds: Sequence[int] = (),
    background: bool = False,
) -> Output:
    """Run git to its end, and return its status and output.

    Raise `GitError` for a status that is not in `accept`, `GitTimeoutError` after `time_limit` seconds and
    `OutputTooLargeError` beyond `output_limit` bytes.
    """
    async with start(
        arguments,
        repository=repository,
        extra_environment=extra_environment,
        configuration=configuration,
        with_stdin=bool(stdin),
        time_limit=time_limit,
        pass_fds=pass_fds,
        background=background,
    ) as child:
        if stdin:
            child.feed(once(stdin))
        stdout = await child.whole_output(output_limit)
        status = await child.end()
        if status not in accept:
            raise git_error(child.command, status, child.stderr)
        return Output(status, stdout)


async def once(data: bytes) -> AsyncIterator[bytes]:
    """Yield `data`, as the body for `Child.feed`."""
    yield data


#: The oldest version that is supported: the first with `core.fsync`, by which an acknowledged push survives a power
#: cut.
OLDEST = (2, 36)


def check_git() -> str:
    """Return the version of the git on PATH, such as "2.39". Raise `ConfigError` if it is missing or too old."""
    needed = f"git {'.'.join(map(str, OLDEST))} or newer is needed"
    try:
        output = subprocess.run(["git", "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as problem:
        raise ConfigError(f"{needed}, and none can be run ({problem.strerror}): install it on PATH") from None
    match = re.match(r"git version (\d+)\.(\d+)", output)
    if match is None:
        raise ConfigError(f"{needed}, and the git on PATH does not say which it is: install it on PATH")
    if (int(match[1]), int(match[2])) < OLDEST:
        raise ConfigError(f"{needed}, the one on PATH is {match[1]}.{match[2]}: upgrade it")
    return f"{match[1]}.{match[2]}"
