"""The processes under test, each of which is started again whenever it ends, as an init does."""

import abc
import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from forgelet.local.embedded_postgres import Cluster
from forgelet.local.processes import Account, CannotStart, Child
from scripts.abuse.watching import descendants

#: An init waits this long before it starts what has ended, so as not to spin.
RESTART_SECONDS = 0.2
STOP_SECONDS = 40.0


class Kept(abc.ABC):
    """A process that runs as long as its block lasts, whatever ends it. `pid` is 0 while there is none."""

    def __init__(self, name: str, logs: Path) -> None:
        self.name = name
        self.logs = logs
        self.starts = 0
        self._child: Child | None = None
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Kept":
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
                await until(self._child.has_ended, STOP_SECONDS)
        finally:
            if self._child is not None:
                self._child.stop(patience=0.1)

    async def end(self) -> None:
        """kill -9 of it and all below it, for good: it is not started again."""
        self._closing = True
        if self._task is not None:
            await self._task
        self.kill_tree()
        if self._child is not None:
            await until(self._child.has_ended, STOP_SECONDS)
        self._child = None

    @property
    def pid(self) -> int:
        return 0 if self._child is None or self._child.has_ended() else self._child.process.pid

    def kill(self) -> None:
        """Ends the process without its children, which may go on."""
        self.signal(signal.SIGKILL)

    def kill_tree(self) -> None:
        """Ends the process and all below it in one moment, as the end of a container or the power does."""
        frozen = self.freeze()
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def freeze(self) -> set[int]:
        """Stops the process and all below it; their ids."""
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
                self._child = await self._started(self.newest_log())
                while not self._child.has_ended():
                    if self._closing:
                        return
                    await asyncio.sleep(0.02)
            if not self._closing:
                await asyncio.sleep(RESTART_SECONDS)

    @abc.abstractmethod
    async def _started(self, log: Path) -> Child:
        """The process, started anew. Raises `CannotStart`."""


class KeptProgram(Kept):
    """A program, of ours but for databases and what stands before them."""

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
        super().__init__(name, logs)
        self.command = list(command)
        self.environment = dict(environment)
        self._cwd = cwd
        self._account = account
        self._stop_signal = stop_signal

    async def _started(self, log: Path) -> Child:
        return Child(
            self.name,
            self.command,
            log=log,
            environment=self.environment,
            cwd=self._cwd,
            account=self._account,
            stop_signal=self._stop_signal,
        )


class KeptPostgres(Kept):
    """PostgreSQL. It is started from a thread of its own, since that blocks, and a child ends with its thread."""

    def __init__(self, logs: Path, cluster: Cluster, thread: ThreadPoolExecutor) -> None:
        super().__init__("postgresql", logs)
        self.cluster = cluster
        self._thread = thread

    async def _started(self, log: Path) -> Child:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.cluster.start, log)


async def until(condition: Callable[[], object], seconds: float) -> bool:
    """Whether it comes true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True
