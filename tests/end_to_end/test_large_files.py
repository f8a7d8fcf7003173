"""A file of 64 MiB, and slow readers of smaller ones: neither is ever in the API server's memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support.forge import ROOT_TOKEN
from tests.support.git_client import Git
from tests.support.server_process import ServerProcess, server_process

MIB = 2**20
SIZE = 64 * MIB
HEADERS = {"PRIVATE-TOKEN": ROOT_TOKEN}
#: What a request may cost, whatever the file's size: pieces on their way, modules that load late.
ALLOWED = 32 * MIB


@pytest.fixture(scope="module")
async def stored(new_database: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """A server, and where the files of a public project are: in the API, and as static objects."""
    async with server_process(
        new_database(), tmp_path_factory.mktemp("large"), file_json_limit=16 * MIB
    ) as server:
        project = (await server.root.post("/projects", {"name": "large", "visibility": "public"})).body
        git = Git(tmp_path_factory.mktemp("work"))
        await git.init()
        await git("config", "core.compression", "1")
        await git.commit_files({"large": b"0123456789abcdef" * (SIZE // 16), "small": b"s" * 9 * MIB})
        url = server.base.replace("://", f"://root:{ROOT_TOKEN}@")
        await git("push", "--quiet", f"{url}/{project['path_with_namespace']}.git", "main")
        api = f"{server.base}/api/v4/projects/{project['id']}/repository/files"
        yield server, api, f"{server.base}/{project['path_with_namespace']}/-/raw/main"


async def _read(server: ServerProcess, url: str, **headers: str) -> tuple[int, int, bytes]:
    """Status, how many bytes came, and the first 10 of them."""
    count, first = 0, b""
    async with server.session.get(url, headers=HEADERS | headers) as answer:
        async for piece in answer.content.iter_any():
            first = (first + piece)[:10]
            count += len(piece)
        return answer.status, count, first


async def test_three_readers_of_a_file_of_64_mib(stored: Any) -> None:
    server, api, page = stored
    before = server.peak_memory()
    urls = [f"{api}/large/raw", f"{page}/large", f"{api}/large/raw?ref=main"]
    assert await asyncio.gather(*(_read(server, url) for url in urls)) == [(200, SIZE, b"0123456789")] * 3
    for url in urls:
        assert await _read(server, url, Range=f"bytes={SIZE - 6}-") == (206, 6, b"abcdef")
    refused = await _read(server, f"{api}/large")
    assert (refused[0], refused[2]) == (413, b'{"message"')
    assert server.peak_memory() - before < ALLOWED


async def test_a_file_as_json_is_not_in_memory(stored: Any) -> None:
    server, api, _ = stored
    before = server.peak_memory()
    answers = await asyncio.gather(*(_read(server, f"{api}/small") for _ in range(6)))
    assert {(status, count > 12 * MIB) for status, count, _ in answers} == {(200, True)}
    assert server.peak_memory() - before < ALLOWED


async def test_slow_readers_cost_little(stored: Any) -> None:
    server, api, page = stored
    before = server.peak_memory()
    async with AsyncExitStack() as readers:
        for number in range(12):
            # strangers and users are counted apart, 6 each
            url, headers = (f"{api}/large/raw", HEADERS) if number % 2 else (f"{page}/large", {})
            answer = await readers.enter_async_context(server.session.get(url, headers=headers))
            assert answer.status == 200
            await answer.content.readexactly(MIB)
        assert server.peak_memory() - before < ALLOWED
