"""Several workers behind one supervisor, which are killed, replaced and ended while clients send requests."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes import children_of, runs
from tests.support.server_process import ServerProcess, server_process

WORKERS = 2
POOL = 10


async def until_there_are(server: ServerProcess, *, without: set[int]) -> None:
    while len(found := set(children_of(server.pid))) != WORKERS or found & without:
        await asyncio.sleep(0.1)


class Load:
    """Writes, one after the other, each on a connection of its own; `done` are the acknowledged ones."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.done: list[str] = []
        self.failed: list[str] = []
        self._number = 0

    async def write(self) -> None:
        while True:
            self._number += 1
            name = f"group-{self._number}"
            try:
                answer = await self.server.root.request(
                    "POST", "/groups", json={"name": name, "path": name}, headers={"Connection": "close"}
                )
            except OSError as problem:
                self.failed.append(repr(problem))
            except Exception as problem:
                self.failed.append(repr(problem))
            else:
                (self.done if answer.status == 201 else self.failed).append(name)


async def test_workers_are_killed_replaced_and_ended(new_database: Any, tmp_path: Path) -> None:
    async with (
        server_process(new_database(), tmp_path / "data", workers=WORKERS) as server,
        asyncio.timeout(170),
    ):
        await until_there_are(server, without=set())
        load = Load(server)
        writing = asyncio.create_task(load.write())

        before = set(children_of(server.pid))
        server.signal(signal.SIGHUP)
        await until_there_are(server, without=before)
        assert load.failed == [], "nothing is refused while workers are replaced"

        killed = min(set(children_of(server.pid)))
        os.kill(killed, signal.SIGKILL)
        await until_there_are(server, without={killed})
        count = len(load.done)
        while len(load.done) < count + 5:
            await asyncio.sleep(0.05)
        writing.cancel()
        for name in load.done:
            assert (await server.root.get(f"/groups/{name}")).status == 200

        left = set(children_of(server.pid))
        server.signal(signal.SIGKILL)
        await server.wait()
        while any(map(runs, left)):
            await asyncio.sleep(0.1)


async def test_limits_hold_for_all_workers_together(new_database: Any, tmp_path: Path) -> None:
    limit = 12
    async with (
        server_process(new_database(), tmp_path / "data", workers=WORKERS, jobs_rate_limit=limit) as server,
        asyncio.timeout(120),
    ):
        await until_there_are(server, without=set())
        project = (await server.root.post("/projects", {"name": "counted"})).body["id"]

        async def jobs() -> Any:
            """Request jobs on a new connection, so that either worker may answer."""
            path = f"/projects/{project}/jobs"
            return await server.root.request("GET", path, headers={"Connection": "close"})

        assert [(await jobs()).status for _ in range(limit + 1)] == [200] * limit + [429]
        killed = min(set(children_of(server.pid)))
        os.kill(killed, signal.SIGKILL)
        await until_there_are(server, without={killed})
        assert {(await jobs()).status for _ in range(6)} == {429}

        rate = {"enabled": True, "requests_per_period": limit, "period_in_seconds": 1_000_000}
        await server.root.put(
            "/application/settings",
            {f"throttle_authenticated_api_{name}": value for name, value in rate.items()},
        )
        await asyncio.sleep(1)  # a worker that does not listen yet may use its cache for this long
        path, own = "/user", {"Connection": "close"}
        answers = [await server.root.request("GET", path, headers=own) for _ in range(limit + 3)]
        assert answers[-1].status == 429
        assert answers[-1].headers["RateLimit-Remaining"] == "0"
        observed = [int(one.headers["RateLimit-Observed"]) for one in answers if one.status == 429]
        assert observed == list(range(limit + 1, limit + 1 + len(observed)))


async def counted(server: ServerProcess, route: str) -> float:
    """Return the number of requests for a route, as any of the workers counts it."""
    url = f"{server.base}/-/metrics"
    text = (await server.root.request("GET", url, headers={"Connection": "close"})).body
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.endswith("_duration_seconds_count") and sample.labels.get("route") == route
    )


async def gauges(server: ServerProcess) -> dict[str, float]:
    """Return the gauges without labels."""
    text = str((await server.root.get(f"{server.base}/-/metrics")).body)
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }


async def test_metrics_are_those_of_all_workers(new_database: Any, tmp_path: Path) -> None:
    route = "/api/v4/version"
    async with (
        server_process(new_database(), tmp_path / "data", workers=WORKERS, database_pool=POOL) as server,
        asyncio.timeout(150),
    ):
        await until_there_are(server, without=set())

        asked = 0

        async def ask(times: int) -> None:
            nonlocal asked
            for _ in range(times):
                asked += 1
                await server.root.request("GET", "/version", headers={"Connection": "close"})

        await ask(20)
        assert [await counted(server, route) for _ in range(8)] == [20] * 8

        before = set(children_of(server.pid))
        server.signal(signal.SIGHUP)
        while set(children_of(server.pid)) & before:
            await ask(1)
        await until_there_are(server, without=before)
        assert await counted(server, route) == asked > 20, "those that were replaced have said all"
        await ask(5)
        assert [await counted(server, route) for _ in range(8)] == [asked] * 8

        for _ in range(2):
            killed = min(set(children_of(server.pid)))
            os.kill(killed, signal.SIGKILL)
            await until_there_are(server, without={killed})
            assert [await counted(server, route) for _ in range(4)] == [asked] * 4
        while (await gauges(server))["forgelet_database_pool_size"] != WORKERS * POOL:
            await asyncio.sleep(0.1)  # one is still under way
        assert (await gauges(server))["forgelet_database_up"] == 1
