"""What single operations take of processors: one client at one process, nothing else."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg2

from api_server.ci.runners.pending_jobs import CHANNEL
from scripts.bench.harness import processor
from scripts.bench.scene import working_runners
from scripts.bench.simulating.clients import answer, asked, request, said
from scripts.bench.simulating.scene import Scene, poll
from scripts.bench.simulating.times import Times

PIECE = 1024
#: Runners that wait, and how often all of them are woken.
WAITING, NOTICES = 100, 20


def calibrated(scene: Scene, seconds: float = 3.0) -> dict[str, Times]:
    """By operation, as `times.toml` has them. The jobs of the scene are handed out."""
    found = {"list": asyncio.run(_requests(scene, scene.requests["list"], seconds))}
    handed: list[dict[str, Any]] = []
    found["hand_out"] = asyncio.run(_hand_outs(scene, handed))
    found["append"] = asyncio.run(_appends(scene, handed))
    found["poll"] = asyncio.run(_requests(scene, scene.requests["poll"], seconds))
    found["woken"] = asyncio.run(_woken(scene))
    found["fetch"] = asyncio.run(_requests(scene, scene.requests["fetch"], seconds))
    found["validate"] = asyncio.run(_requests(scene, asyncio.run(_conditional(scene)), seconds))
    return found


async def _requests(scene: Scene, one: bytes, seconds: float) -> Times:
    """Of requests, one after the other."""

    async def work() -> int:
        return len((await asked(scene.ports[:1], [one], 1, 0.0, seconds)).taken)

    await asked(scene.ports[:1], [one], 1, 0.0, seconds / 4)  # statements are prepared
    return await _taken(scene, work)


async def _hand_outs(scene: Scene, handed: list[dict[str, Any]]) -> Times:
    """To runners that ask at the same time, so that `other` is not known."""

    async def work() -> int:
        handed.extend(await working_runners.take_all(scene.servers[0].api.base_url, scene.busy, scene.jobs))
        return len(handed)

    return await _taken(scene, work, waits=True)


async def _appends(scene: Scene, jobs: list[dict[str, Any]]) -> Times:
    """The first piece of each job's log."""

    piece = (working_runners.LINE * PIECE)[:PIECE]

    async def work() -> int:
        for job in jobs:
            headers = {"JOB-TOKEN": str(job["token"]), "Content-Range": f"0-{PIECE - 1}"}
            writer.write(request("PATCH", f"/api/v4/jobs/{job['id']}/trace", headers, piece))
            await answer(reader)
        return len(jobs)

    reader, writer = await asyncio.open_connection("127.0.0.1", scene.ports[0])
    try:
        return await _taken(scene, work)
    finally:
        writer.close()


async def _woken(scene: Scene) -> Times:
    """Of one runner that waits, and one notice, after which there is nothing for it."""
    port = scene.ports[0]
    head, _ = await said(port, poll(scene.idle))
    found = re.search(rb"\r\nX-GitLab-Last-Update: (\S+)", head, re.IGNORECASE)
    assert found is not None
    waits = poll(scene.idle, found[1].decode())
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(WAITING)]
    for _, writer in connections:
        writer.write(waits)
    await asyncio.sleep(1.0)

    async def work() -> int:
        with psycopg2.connect(scene.cluster.url()) as database, database.cursor() as cursor:
            for _ in range(NOTICES):
                cursor.execute(f"NOTIFY {CHANNEL}")
                database.commit()
                await asyncio.sleep(0.3)
        return WAITING * NOTICES

    try:
        return await _taken(scene, work, waits=True)
    finally:
        for _, writer in connections:
            writer.close()


async def _conditional(scene: Scene) -> bytes:
    """The request for the file with the entity tag that it has."""
    head, _ = await said(scene.ports[0], scene.requests["fetch"])
    found = re.search(rb"\r\nETag: (\S+)", head, re.IGNORECASE)
    assert found is not None
    path = scene.requests["fetch"].split(b" ", 2)[1].decode()
    return request("GET", path, {"If-None-Match": found[1].decode()})


async def _taken(scene: Scene, work: Callable[[], Awaitable[int]], *, waits: bool = False) -> Times:
    """Of each of as many operations as `work` says that it has done."""
    server = scene.servers[0]
    begun = time.perf_counter()
    before = processor.seconds([server.pid]), processor.seconds([server.database]), time.process_time()
    number = await work()
    after = processor.seconds([server.pid]), processor.seconds([server.database]), time.process_time()
    used = [(now - then) / number * 1000 for now, then in zip(after, before, strict=True)]
    whole = (time.perf_counter() - begun) / number * 1000
    return Times(used[0], used[1], 0.0 if waits else max(0.0, whole - sum(used)), used[2])
