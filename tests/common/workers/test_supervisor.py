"""The supervisor with workers that die, that do not get ready, and that are told to."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import attrs
import pytest

from tests.support.ports import free_port

#: Of the module that a test may shorten.
PROGRAM = "from common import supervisor; supervisor.READY_SECONDS = {ready_seconds}; supervisor.main()"
#: New connections until both workers have surely been met.
CONNECTIONS = 40


@attrs.frozen
class Supervised:
    """A supervisor of two workers; `folder` is what those look at."""

    process: asyncio.subprocess.Process
    folder: Path
    host: str
    port: int

    def begun(self, number: int) -> list[tuple[float, int]]:
        """When, and with which process id."""
        try:
            lines = (self.folder / f"begun-{number}").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(float(line.split()[0]), int(line.split()[1])) for line in lines]

    async def answered(self) -> str:
        """By which worker; "" where nobody listens."""
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            return ""
        try:
            return (await asyncio.wait_for(reader.read(), 20)).decode()
        finally:
            writer.close()

    async def until_answered(self) -> None:
        """Wait until a worker answers."""
        async with asyncio.timeout(30):
            while not await self.answered():
                await asyncio.sleep(0.02)

    async def answering(self) -> set[str]:
        return {await self.answered() for _ in range(CONNECTIONS)}


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not happened():
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def supervised(
    folder: Path, host: str = "127.0.0.1", ready_seconds: float = 120
) -> AsyncIterator[Supervised]:
    port = free_port()
    plan = {
        "command": [sys.executable, "-m", "tests.common.workers.stand_in", str(folder)],
        "workers": 2,
        "host": host,
        "port": port,
        "operations_port": 0,
        "grace": 5,
        "log": ["json", "INFO", str(folder / "log")],
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM.format(ready_seconds=ready_seconds), json.dumps(plan)
    )
    try:
        yield Supervised(process, folder, host, port)
        if process.returncode is None:
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_wrong_settings_end_it_with_their_status(tmp_path: Path) -> None:
    (tmp_path / "ends-0").write_text("2")
    async with supervised(tmp_path) as them:
        assert await asyncio.wait_for(them.process.wait(), 20) == 2
        assert len(them.begun(0)) == 1
        assert them.begun(1) == []


async def test_one_that_dies_again_and_again_is_begun_after_longer_and_longer(tmp_path: Path) -> None:
    (tmp_path / "ends-1").write_text("3")
    async with supervised(tmp_path) as them:
        await until(lambda: len(them.begun(1)) >= 4)
        await them.until_answered()
        times = [when for when, _ in them.begun(1)]
        assert times[2] - times[1] >= 0.5
        assert times[3] - times[2] >= 1.0
        assert await them.answering() == {"0"}, "the other gets its clients"
        (tmp_path / "ends-1").unlink()
        async with asyncio.timeout(30):
            while await them.answering() != {"0", "1"}:
                await asyncio.sleep(0.05)
        assert len(them.begun(0)) == 1


async def test_nobody_is_sent_to_one_that_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "sleeps-1").touch()
    async with supervised(tmp_path) as them:
        await until(lambda: them.begun(1))
        await them.until_answered()
        assert await them.answering() == {"0"}
        (tmp_path / "sleeps-1").unlink()
        async with asyncio.timeout(30):
            while await them.answering() != {"0", "1"}:
                await asyncio.sleep(0.05)


async def test_one_that_does_not_get_ready_replaces_nobody(tmp_path: Path) -> None:
    async with supervised(tmp_path, ready_seconds=6) as them:
        await until(lambda: them.begun(0) and them.begun(1))
        async with asyncio.timeout(30):
            while await them.answering() != {"0", "1"}:
                await asyncio.sleep(0.05)
        (tmp_path / "sleeps-0").touch()
        them.process.send_signal(signal.SIGHUP)
        said = "the workers stay as they are: a new one did not get ready"
        await until(lambda: said in (tmp_path / "log").read_text())
        (_, old), (_, new) = them.begun(0)
        assert Path(f"/proc/{old}").exists()
        await until(lambda: not Path(f"/proc/{new}").exists())
        assert await them.answering() == {"0", "1"}
        assert len(them.begun(1)) == 1, "those that are left stay too"


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as tried:
        tried.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not _has_ipv6(), reason="the machine has no IPv6")
async def test_they_listen_on_ipv6(tmp_path: Path) -> None:
    async with supervised(tmp_path, host="::1") as them:
        async with asyncio.timeout(30):
            while await them.answering() != {"0", "1"}:
                await asyncio.sleep(0.05)
