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
#: To a process in which a runner waits.
NOTICES = 500


def calibrated(scene: Scene, seconds: float = 3.0) -> dict[str, Times]:
    """By operation, as `times.toml` has them. The jobs of the scene are handed out."""
    found = {"list": asyncio.run(_requests(scene, scene.requests["list"], seconds))}
    found["look"] = asyncio.run(_looks(scene))
    handed: list[dict[str, Any]] = []
    found["hand_out"] = asyncio.run(_hand_outs(scene, handed))
    found["append"] = asyncio.run(_appends(scene, handed))
    found["poll"] = asyncio.run(_requests(scene, scene.requests["poll"], seconds))
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


async def _looks(scene: Scene) -> Times:
    """Of a process, for a notice, whether its one waiting runner may take a job: it may not. What a notice costs where
    nobody waits is not counted."""

    async def work() -> int:
        with psycopg2.connect(scene.cluster.url()) as database, database.cursor() as cursor:
            for _ in range(NOTICES):
                cursor.execute(f"NOTIFY {CHANNEL}, '{scene.project}'")
                database.commit()
                await asyncio.sleep(0.02)
        return NOTICES

    port = scene.ports[0]
    head, _ = await said(port, poll(scene.idle))
    found = re.search(rb"\r\nX-GitLab-Last-Update: (\S+)", head, re.IGNORECASE)
    assert found is not None
    alone = await _taken(scene, work, waits=True)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(poll(scene.idle, found[1].decode()))
    await asyncio.sleep(1.0)
    try:
        both = await _taken(scene, work, waits=True)
    finally:
        writer.close()
    return Times(max(0.0, both.api - alone.api), max(0.0, both.database - alone.database))


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
