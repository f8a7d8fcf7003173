"""An LFS object passes through two servers, by a client and by a mirror, and is in no memory as a whole."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.forge import ROOT_TOKEN
from tests.support.server_process import ServerProcess, server_process

MIB = 2**20
SIZE = 80 * MIB
#: What a request may cost: parts on their way to the object store, caches that fill, modules that load late.
ALLOWED = 64 * MIB
CREDENTIALS = {"Authorization": aiohttp.encode_basic_auth("root", ROOT_TOKEN)}


async def _content() -> AsyncIterator[bytes]:
    for number in range(SIZE // MIB):
        yield bytes([number]) * MIB


async def _oid(chunks: AsyncIterator[bytes]) -> str:
    digest = hashlib.sha256()
    async for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


async def _fetched(server: ServerProcess, project: dict[str, Any], oid: str) -> str:
    """The SHA-256 of what the server gives for the object."""
    url = f"{server.base}/{project['path_with_namespace']}.git/info/lfs/objects/{oid}"
    async with server.session.get(url, headers=CREDENTIALS) as answer:
        assert answer.status == 200
        return await _oid(answer.content.iter_chunked(2**16))


async def test_a_large_object(new_database: Callable[[], str], tmp_path: Path) -> None:
    oid = await _oid(_content())
    async with (
        server_process(new_database(), tmp_path / "one", allow_local_requests=True) as one,
        server_process(new_database(), tmp_path / "two") as two,
    ):
        project = (await one.root.post("/projects", {"name": "large"})).body
        copy = (await two.root.post("/projects", {"name": "copy"})).body
        before = one.peak_memory(), two.peak_memory()
        lfs = f"{one.base}/{project['path_with_namespace']}.git/info/lfs"
        async with one.session.put(
            f"{lfs}/objects/{oid}/{SIZE}", data=_content(), headers=CREDENTIALS
        ) as answer:
            assert answer.status == 200
        assert await _fetched(one, project, oid) == oid
        url = f"{two.base.replace('://', f'://root:{ROOT_TOKEN}@')}/{copy['path_with_namespace']}.git"
        path = f"/projects/{project['id']}"
        mirror = (await one.root.post(f"{path}/remote_mirrors", {"url": url, "enabled": True})).body
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {SIZE}\n"
        commit = {"branch": "main", "content": pointer, "commit_message": "Begin"}
        assert (await one.root.post(f"{path}/repository/files/large%2Ebin", commit)).status == 201
        async with asyncio.timeout(60):
            while (shown := (await one.root.get(f"{path}/remote_mirrors/{mirror['id']}")).body)[
                "update_status"
            ] in ("none", "started"):
                await asyncio.sleep(0.1)
        assert (shown["update_status"], shown["last_error"]) == ("finished", None)
        assert await _fetched(two, copy, oid) == oid
        grown = one.peak_memory() - before[0], two.peak_memory() - before[1]
        assert max(grown) < ALLOWED
