"""`python -m api_server` as operators run it: a process that can be killed, and whose memory can be measured."""

import asyncio
import contextlib
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

#: Seconds within which a server has to be ready on a busy machine.
READY_SECONDS = 120.0


@attrs.define
class ServerProcess:
    """A server's settings, and the process that runs with them, if there is one."""

    base: str
    session: aiohttp.ClientSession
    _environment: dict[str, str]
    _under: tuple[str, ...] = ()
    _process: asyncio.subprocess.Process | None = None

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
        process = await asyncio.create_subprocess_exec(
            *self._under, sys.executable, "-m", "api_server",
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self._process = process
        async with asyncio.timeout(READY_SECONDS):
            while process.returncode is None:
                with contextlib.suppress(aiohttp.ClientError):
                    async with self.session.get(f"{self.operations}/-/readiness") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.05)
        raise AssertionError(f"the server ended with {process.returncode} before it was ready")

    def kill(self) -> None:
        """Send SIGKILL, without waiting."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, without waiting."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def wait(self) -> int | None:
        """Wait for the end of the process; return its exit status."""
        return None if self._process is None else await self._process.wait()

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None
        return self._process.pid

    def peak_memory(self) -> int:
        """Return the maximum of resident bytes of the running process so far."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
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
    async with aiohttp.ClientSession() as session:
        server = ServerProcess(f"http://127.0.0.1:{port}", session, environment, under)
        try:
            await server.start()
            yield server
        finally:
            server.kill()
            await server.wait()
