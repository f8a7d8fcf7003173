"""`python -m api_server` as an operator runs it: a process that can be killed, and whose memory is its own."""

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

#: In which a server is ready on a machine that does much else.
READY_SECONDS = 120.0


@attrs.define
class ServerProcess:
    """One server's settings, and the process that runs with them now, if one does."""

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
        """Where readiness and metrics are."""
        port = self._environment.get("FORGELET_API_OPERATIONS_PORT")
        return f"http://127.0.0.1:{port}" if port else self.base

    async def start(self) -> None:
        """Returns when the server is ready. Fails after as long as a busy machine may take."""
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
        """SIGKILL, without waiting."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, without waiting for anything."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def wait(self) -> int | None:
        """Waits for the end of the process; its exit status."""
        return None if self._process is None else await self._process.wait()

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def peak_memory(self) -> int:
        """The most bytes that were ever resident in the running process."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


@contextlib.asynccontextmanager
async def server_process(
    database_url: str, data_dir: Path, *, under: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[ServerProcess]:
    """A running server with the administrator's token of the tests; `settings` by their names in the settings class.
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
