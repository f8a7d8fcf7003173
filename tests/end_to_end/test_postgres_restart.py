"""PostgreSQL is restarted below a running server, which notices and goes on by itself."""

import asyncio
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from forgelet.local import embedded_postgres
from tests.support.runner import INFO
from tests.support.server_process import ServerProcess, server_process

CONFIG = "build:\n  script: echo\n"
LISTENER = "listening for jobs"


async def test_runners_that_wait_are_woken_after_postgresql_has_been_restarted(tmp_path: Path) -> None:
    with embedded_postgres.temporary() as cluster:
        log = cluster.log
        async with (
            asyncio.timeout(100),
            server_process(cluster.url(), tmp_path / "data", runner_poll_timeout=300) as server,
        ):
            project = await _project(server)
            runner = {"token": await _runner(server, project), "info": INFO, "last_update": "x"}
            waiting = None
            while waiting is None or waiting.done():  # it had not come so far as to wait
                restarts = await _restarts(server)
                waiting = asyncio.create_task(server.root.post("/jobs/request", runner))
                await asyncio.sleep(0.3)
                cluster.stop()
                cluster.start(log)
                while await _restarts(server) == restarts or not await _is_ready(server):
                    await asyncio.sleep(0.05)
            made = await server.root.post(f"/projects/{project}/pipeline", {"ref": "main"})
            assert made.status == 201, made
            answer = await waiting
            assert answer.status == 201, answer
            assert answer.body["job_info"]["project_id"] == project


async def _project(server: ServerProcess) -> int:
    project = int((await server.root.post("/projects", {"name": "restart"})).body["id"])
    body = {"branch": "main", "content": CONFIG, "commit_message": "Begin [ci skip]"}
    url = f"/projects/{project}/repository/files/%2Egitlab-ci%2Eyml"
    assert (await server.root.post(url, body)).status == 201
    return project


async def _runner(server: ServerProcess, project: int) -> str:
    made = await server.root.post("/user/runners", {"runner_type": "project_type", "project_id": project})
    return str(made.body["token"])


async def _samples(server: ServerProcess) -> dict[tuple[str, tuple[str, ...]], float]:
    """The server's metrics by name and labels."""
    async with server.session.get(f"{server.base}/-/metrics") as answer:
        families = text_string_to_metric_families(await answer.text())
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }


async def _restarts(server: ServerProcess) -> float:
    return (await _samples(server))["background_task_restarts_total", (LISTENER,)]


async def _is_ready(server: ServerProcess) -> bool:
    try:
        async with server.session.get(f"{server.base}/-/readiness") as answer:
            return (await answer.json())["status"] == "ok"
    except aiohttp.ClientError:
        return False
