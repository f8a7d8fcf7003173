"""The budget of the disk counts what arrives, at all processes of a directory; what does not fit is passed on."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from aiohttp import web

from tests.storage_edge.conftest import Edge, Origin, StartEdge
from tests.support.waiting import until

BUDGET = 2_000_000
SIZE = 700_000


def _on_disk(directory: Path) -> int:
    size = 0
    for path in directory.glob("v*/*/*/*"):
        with contextlib.suppress(FileNotFoundError):  # files get other names, or go, at any moment
            size += path.stat().st_size if path.is_file() else 0
    return size


def _fields(origin: Origin) -> dict[str, str]:
    return {"Cache-Control": "max-age=600", "ETag": '"1"', "Date": origin.date()}


def _body(target: str) -> bytes:
    return target.encode().ljust(100, b".") * (SIZE // 100)


@pytest.mark.parametrize("length_is_known", [True, False])
async def test_bodies_that_arrive_count(
    start_edge: StartEdge, origin: Origin, tmp_path: Path, length_is_known: bool
) -> None:
    edges = [await start_edge(disk_bytes=BUDGET, memory_object_bytes=10_000) for _ in range(2)]
    waiting, gate = [], asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=_fields(origin))
        if length_is_known:
            response.content_length = SIZE
        await response.prepare(request)
        body = _body(request.path)
        await response.write(body[:-1000])
        waiting.append(request)
        await gate.wait()
        await response.write(body[-1000:])
        return response

    origin.handler = handler
    targets = [f"/group/app/-/raw/main/{number}" for number in range(6)]
    asked = [
        asyncio.create_task(edge.get(target))
        for number, target in enumerate(targets)
        for edge in edges[number % 2 :][:1]
    ]
    await until(lambda: len(waiting) == len(targets) and _on_disk(tmp_path / "edge") > SIZE)
    gate.set()
    while not all(task.done() for task in asked):
        assert _on_disk(tmp_path / "edge") <= BUDGET
        await asyncio.sleep(0)
    for target, answer in zip(targets, await asyncio.gather(*asked), strict=True):
        assert answer.body == _body(target)
    for edge in edges:
        await edge.settled()
    assert SIZE <= _on_disk(tmp_path / "edge") <= BUDGET
    kept = [target for target in targets if await _is_kept(edges[0], target)]
    assert kept
    # Who is asked for again displaces others.
    for target in targets:
        for _ in range(2):
            assert (await edges[0].get(target)).body == _body(target)
            await edges[0].settled()
        assert await _is_kept(edges[0], target)
        assert _on_disk(tmp_path / "edge") <= BUDGET


async def _is_kept(edge: Edge, target: str) -> bool:
    return (await edge.get(target, Cache_Control="only-if-cached")).status == 200


async def test_a_body_that_outgrows_the_budget_is_passed_on_to_all_who_read_it(
    start_edge: StartEdge, origin: Origin, tmp_path: Path
) -> None:
    edge = await start_edge(disk_bytes=BUDGET, memory_object_bytes=10_000)
    body = b"0123456789" * (3 * BUDGET // 10)

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=_fields(origin))
        await response.prepare(request)
        await response.write(body)
        return response

    origin.handler = handler
    for answer in await asyncio.gather(*(edge.get("/group/app/-/raw/main/large") for _ in range(4))):
        assert answer.body == body
    await edge.settled()
    assert _on_disk(tmp_path / "edge") == 0
    assert not await _is_kept(edge, "/group/app/-/raw/main/large")
