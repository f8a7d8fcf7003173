"""Processes under test: their use of memory and processor, and processes that are started again whenever they end
(Linux only). And the Python of an environment beside ours."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import attrs

from forgelet.local.processes import Account, CannotStart, Child
from forgelet.local.variables import Program, foreign

_CHECKOUT = Path(__file__).resolve().parents[2]
SAMPLE_SECONDS = 0.05
_PING_SECONDS = 0.02
_MIB = 2**20


@attrs.frozen
class Usage:
    """The child processes, open descriptors and bytes of memory of a server at one moment; `cached` are the bytes of
    caches that its settings allow."""

    children: int
    descriptors: int
    memory: int = 0
    cached: int = 0

    @property
    def own_memory(self) -> int:
        """Bytes of memory without caches."""
        return self.memory - self.cached


@attrs.define
class PeakUsage:
    """The highest values during an attack: bytes of the server, the number of its children and their bytes together,
    and the seconds of the processor that its event loop used before an answer."""

    memory: int = 0
    step: float = 0.0
    children: int = 0
    children_memory: int = 0


class WatchedProcess:
    """A server's process, which is observed for the duration of a `with` block."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.peak = PeakUsage()
        self._over = threading.Event()

    def __enter__(self) -> "WatchedProcess":
        self.peak = PeakUsage()
        self._over.clear()
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def usage(self) -> Usage:
        """Return the current usage. Raise ProcessLookupError if the server has ended."""
        try:
            descriptors = len(list(Path(f"/proc/{self.pid}/fd").iterdir()))
        except FileNotFoundError:
            raise ProcessLookupError(f"The server {self.pid} has ended.") from None
        return Usage(len(descendants(self.pid)), descriptors, resident_bytes(self.pid))

    def _measure(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            children = descendants(self.pid)
            self.peak.memory = max(self.peak.memory, resident_bytes(self.pid))
            self.peak.children = max(self.peak.children, len(children))
            self.peak.children_memory = max(self.peak.children_memory, sum(map(resident_bytes, children)))


def server_in(directory: Path) -> int:
    """Return the server that works in `directory`; its children that work there too do not count."""
    pids = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink() == directory:
                pids.add(int(entry.name))
    servers = pids - {child for pid in pids for child in descendants(pid)}
    if len(servers) != 1:
        raise ProcessLookupError(f"{len(servers)} servers run in {directory}.")
    return servers.pop()


def megabytes(size: int) -> str:
    return f"{size / _MIB:.0f}"


def descendants(pid: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            _, _, rest = (entry / "stat").read_text().rpartition(") ")
            children.setdefault(int(rest.split()[1]), []).append(int(entry.name))
    result: set[int] = set()
    waiting = [pid]
    while waiting:
        child_pids = children.get(waiting.pop(), [])
        result.update(child_pids)
        waiting.extend(child_pids)
    return result


def resident_bytes(pid: int) -> int:
    """Return the resident bytes that no file backs, which the process itself has allocated. Return 0 if it has
    ended."""
    with contextlib.suppress(OSError):
        return memory_bytes(pid, "status", "RssAnon", "RssShmem")
    return 0


def memory_bytes(pid: int, file: str, *names: str) -> int:
    """Return the sum of the named lines, in bytes, of a file in /proc about the process. A process that has ended and
    is not yet waited for has no such lines, and no memory."""
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return sum(int(values.get(name, "0").removesuffix("kB")) * 1024 for name in names)


def server_variables(program: Program[Any], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of one of our servers; `settings` have no prefix."""
    return foreign(os.environ) | {f"{program.prefix}{name}": value for name, value in settings.items()}


async def longest_step(http: aiohttp.ClientSession, url: str, pid: int) -> float:
    """Send requests until cancelled; return the longest time that the event loop computed before an answer, in seconds
    of the processor."""
    longest = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            before = event_loop_seconds(pid)
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with http.get(url) as answer:
                    await answer.read()
                longest = max(longest, event_loop_seconds(pid) - before)
            await asyncio.sleep(_PING_SECONDS)
    return longest


def processor_seconds(pid: int) -> float:
    """Return the seconds of the processor that a process has used."""
    return sum(map(_of_thread, Path(f"/proc/{pid}/task").iterdir()))


def event_loop_seconds(pid: int) -> float:
    """Return the seconds of the processor of the first thread, which runs the event loop."""
    return _of_thread(Path(f"/proc/{pid}/task/{pid}"))


def _of_thread(thread: Path) -> float:
    return int((thread / "schedstat").read_text().split()[0]) / 1e9


#: Seconds before a process that has ended is started again.
RESTART_SECONDS = 0.2
STOP_SECONDS = 40.0


class KeptProcess:
    """A process that is started again whenever it ends, for the duration of the block. `pid` is 0 while it does not
    run. `start` takes the file for its log, and raises `CannotStart`."""

    def __init__(self, name: str, logs: Path, start: Callable[[Path], Awaitable[Child]]) -> None:
        self.name = name
        self.logs = logs
        self._start = start
        self.starts = 0
        self._child: Child | None = None
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "KeptProcess":
        self._task = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        self.thaw()
        try:
            if self._task is not None:
                await self._task
            if self._child is not None:
                self._child.ask_to_stop()
                await wait_until(self._child.has_ended, STOP_SECONDS)
        finally:
            if self._child is not None:
                self._child.stop(timeout=0.1)

    async def start_again(self) -> None:
        """Start the process again after its block has ended."""
        self._closing = False
        await self.__aenter__()
        await wait_until(lambda: self.pid, 10)

    async def end(self) -> None:
        """Kill the process and its descendants with SIGKILL; it is not started again."""
        self._closing = True
        if self._task is not None:
            await self._task
        self.kill_tree()
        if self._child is not None:
            await wait_until(self._child.has_ended, STOP_SECONDS)
        self._child = None

    @property
    def pid(self) -> int:
        return 0 if self._child is None or self._child.has_ended() else self._child.process.pid

    def kill(self) -> None:
        """Kill the process without its children, which may go on."""
        self.signal(signal.SIGKILL)

    def kill_tree(self) -> None:
        """Kill the process and its descendants in one moment, as the end of a container or a power failure does."""
        frozen = self.freeze()
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def freeze(self) -> set[int]:
        """Stop the process and its descendants; return their ids."""
        frozen: set[int] = set()
        while self.pid and (running := {self.pid, *descendants(self.pid)} - frozen):
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            frozen |= running
        return frozen

    def thaw(self) -> None:
        for pid in {self.pid, *descendants(self.pid)} if self.pid else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        if self.pid:
            os.kill(self.pid, number)

    def newest_log(self) -> Path:
        return self.logs / f"{self.name}.{self.starts:04}.log"

    async def _keep(self) -> None:
        while not self._closing:
            self.starts += 1
            with contextlib.suppress(CannotStart):
                self._child = await self._start(self.newest_log())
                while not self._child.has_ended():
                    if self._closing:
                        return
                    await asyncio.sleep(0.02)
            if not self._closing:
                await asyncio.sleep(RESTART_SECONDS)


class KeptProgram(KeptProcess):
    """A program: one of our servers, a standby, or PgBouncer."""

    def __init__(
        self,
        name: str,
        logs: Path,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: Path,
        account: Account | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        super().__init__(name, logs, self._run)
        self.command = list(command)
        self.environment = dict(environment)
        self._cwd = cwd
        self._account = account
        self._stop_signal = stop_signal

    async def _run(self, log: Path) -> Child:
        return Child(
            self.name,
            self.command,
            log=log,
            environment=self.environment,
            cwd=self._cwd,
            account=self._account,
            stop_signal=self._stop_signal,
        )


def run_forgelet(arguments: Sequence[str], variables: Mapping[str, str]) -> str:
    """Run a command of forgelet to its end; return its output. Raise RuntimeError if it fails."""
    command = [sys.executable, "-P", "-m", "forgelet", *arguments]
    result = subprocess.run(command, env=dict(variables), capture_output=True, text=True, check=False)
    if result.returncode:
        outcome = f"{result.returncode}: {result.stdout.strip()} {result.stderr.strip()}"
        raise RuntimeError(f"forgelet {' '.join(arguments[:2])} ended with {outcome}")
    return result.stdout.strip()


def python_beside(extra: str) -> str:
    """Return the Python of the environment of an extra beside ours, which is created if it does not exist. Return an
    empty text if ours is not in .venv. Raise `CalledProcessError` if the creation fails."""
    if Path(sys.prefix).parent != _CHECKOUT / ".venv":
        return ""
    command = ["sh", "-c", f". scripts/python.sh && beside {extra}", "scripts/test"]
    environment = {**os.environ, "FORGELET_PYTHON": sys._base_executable}  # type: ignore[attr-defined]
    return subprocess.run(
        command, cwd=_CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


async def wait_until(condition: Callable[[], object], seconds: float, pause: float = 0.02) -> bool:
    """Wait until the condition is true, for at most `seconds`; return whether it is."""

    async def look() -> object:
        return condition()

    return bool(await retry_until(look, seconds, pause=pause))


T = TypeVar("T")


async def retry_until(
    look: Callable[[], Awaitable[T]],
    seconds: float,
    *,
    is_done: Callable[[T], object] = bool,
    pause: float = 0.5,
) -> T:
    """Call `look` again and again until its result `is_done`, for at most `seconds`; return the last result."""
    deadline = time.monotonic() + seconds
    while True:
        value = await look()
        if is_done(value) or time.monotonic() > deadline:
            return value
        await asyncio.sleep(pause)
