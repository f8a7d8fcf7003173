"""`python -m api_server` as operators run it: a process that can be killed, and whose memory can be measured.

It is a fork of a process that has imported the server, because imports take most of its start.
"""

import asyncio
import contextlib
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import attrs

from tests.support.forge import ROOT_TOKEN, Client
from tests.support.ports import free_port
from tests.support.preloaded import run_server

#: Seconds within which a server has to be ready on a busy machine.
READY_SECONDS = 120.0
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["api_server.__main__", "tests.support.preloaded"])


@attrs.define
class ServerProcess:
    """A server's settings, and the process that runs with them, if there is one."""

    base: str
    session: aiohttp.ClientSession
    _environment: dict[str, str]
    #: The command, if the server is not a fork.
    _command: tuple[str, ...] = ()
    _process: multiprocessing.context.ForkServerProcess | None = None

    @property
    def root(self) -> Client:
        return Client(self.session, self.base, ROOT_TOKEN)

    @property
    def operations(self) -> str:
        """The base URL of readiness and metrics."""
        port = self._environment.get("FORGELET_API_OPERATIONS_PORT")
        return f"http://127.0.0.1:{port}" if port else self.base

    async def start(self) -> None:
        """Start the server and wait until it is ready. Raise an error if it ends before, or takes too long."""
        process = self._process = _FORKS.Process(target=run_server, args=(self._command, self._environment))
        await asyncio.to_thread(process.start)
        async with asyncio.timeout(READY_SECONDS):
            while process.exitcode is None:
                with contextlib.suppress(aiohttp.ClientError):
                    async with self.session.get(f"{self.operations}/-/readiness") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.05)
        raise AssertionError(f"the server ended with {process.exitcode} before it was ready")

    def kill(self) -> None:
        """Send SIGKILL, without waiting."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, without waiting."""
        if self._process is not None and self._process.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def wait(self) -> int | None:
        """Wait for the end of the process; return its exit status."""
        if self._process is None:
            return None
        await asyncio.to_thread(self._process.join)
        return self._process.exitcode

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def peak_memory(self) -> int:
        """Return the maximum of resident bytes of the running process so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


@contextlib.asynccontextmanager
async def server_process(
    database_url: str, data_dir: Path, *, under: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[ServerProcess]:
    """Run a server with the administrator's token of the tests; `settings` have the names of the settings class.
    `under` is a command that runs it."""
    port = free_port()
    token = data_dir.with_name(f"{data_dir.name}-root-token")
    token.write_text(f"{ROOT_TOKEN}\n")
    given = {
        "database_url": database_url,
        "data_dir": data_dir,
        "port": port,
        "root_token_file": token,
    } | settings
    environment = os.environ | {f"FORGELET_API_{name.upper()}": str(value) for name, value in given.items()}
    # A supervisor starts its workers with its own command.
    command = (*under, sys.executable, "-m", "api_server") if under or "workers" in settings else ()
    async with aiohttp.ClientSession() as session:
        server = ServerProcess(f"http://127.0.0.1:{port}", session, environment, command)
        try:
            await server.start()
            yield server
        finally:
            server.kill()
            await server.wait()
