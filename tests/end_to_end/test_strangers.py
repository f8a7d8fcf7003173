"""What strangers send and hold costs a process little: memory, open files, bytes read for nothing."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess, server_process
from tests.support.wire import request, talk

MIB = 2**20
BODY = 8 * MIB
STRANGERS = 24
#: What the process may grow by, where the bodies of all are 192 MiB.
ALLOWED = 40 * MIB


@pytest.fixture(scope="module")
async def server(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServerProcess]:
    async with server_process(new_database(), tmp_path_factory.mktemp("strangers"), work=False) as server:
        yield server


async def test_bodies_of_strangers_are_not_held(server: ServerProcess) -> None:
    port = int(server.base.rpartition(":")[2])
    head = request("POST", "/api/v4/groups", "Content-Type: application/json", f"Content-Length: {BODY}")
    before = server.peak_memory()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(talk(port)) for _ in range(STRANGERS)]
        for client in clients:
            client.writer.write(head + b" " * (BODY - 1))
        answers = await asyncio.gather(*(client.answer() for client in clients))
        assert answers == [(401, {"message": "401 Unauthorized"})] * STRANGERS
    assert server.peak_memory() - before < ALLOWED


@pytest.mark.parametrize("asks", [True, False])
async def test_curl_gets_its_answer_without_sending_all(
    server: ServerProcess, tmp_path: Path, *, asks: bool
) -> None:
    """A file of 400 MiB: nothing of it where curl asks before, and not more than is under way where it does not."""
    file = tmp_path / "large"
    with file.open("wb") as opened:
        opened.truncate(400 * MIB)
    process = await asyncio.create_subprocess_exec(
        "curl", "--silent", "--no-buffer", "--request", "POST", "--upload-file", str(file),
        "--header", "Expect: 100-continue" if asks else "Expect:", "--expect100-timeout", "30",
        "--write-out", '{"status": %{http_code}, "sent": %{size_upload}}', "--output", "/dev/null",
        f"{server.base}/api/v4/groups",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    told, _ = await asyncio.wait_for(process.communicate(), 60)
    outcome = json.loads(told)
    assert outcome["status"] == 401
    assert outcome["sent"] <= (0 if asks else 100 * MIB), outcome


async def test_open_files_do_not_run_out() -> None:
    """With 200 of them, half are for connections: the rest are refused, and those who are in are served."""
    process = await asyncio.create_subprocess_exec(
        "prlimit", "--nofile=200:200", sys.executable, "-m", "storage_edge", "--port", "0", "--log-format", "json",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        while "port" not in (event := json.loads(await process.stderr.readline())):
            pass
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(talk(event["port"])) for _ in range(150)]
            for client in clients:
                client.writer.write(request("GET", "/-/liveness"))
            answers = [client.reader.readline() for client in clients]
            statuses = sorted([line.split()[1] for line in await asyncio.gather(*answers)])
            assert statuses == [b"200"] * 100 + [b"503"] * 50
        async with asyncio.timeout(20):
            while await _liveness(event["port"]) != 200:  # until it has noticed that they have gone
                await asyncio.sleep(0.01)
    finally:
        process.kill()
        await process.communicate()


async def _liveness(port: int) -> int:
    async with talk(port) as client:
        await client.send(request("GET", "/-/liveness"))
        return (await client.answer())[0]
