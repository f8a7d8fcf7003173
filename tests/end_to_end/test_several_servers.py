"""One of several servers on one database and one data directory is killed: the others do what it had in hand."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import attrs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from api_server.state import database
from tests.support.server_process import ServerProcess, server_process

#: As when the time had passed for which a delivery stays with the server that has taken it.
GIVE_UP_WAITING = "UPDATE status_check_deliveries SET next_attempt_at = %(now)s WHERE status = 'queued'"


@attrs.define
class Outside:
    """A receiver of deliveries and a mirror's target: nobody is answered before `answers` is set."""

    url: str = ""
    answers: asyncio.Event = attrs.field(factory=asyncio.Event)
    asked: Counter[str] = attrs.field(factory=Counter)
    deliveries: list[str] = attrs.field(factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.asked[request.path] += 1
        if "webhook-id" in request.headers:
            self.deliveries.append(request.headers["webhook-id"])
        await self.answers.wait()
        return web.Response(status=204 if request.path == "/hook" else 403)

    async def until_asked(self, path: str, count: int) -> None:
        async with asyncio.timeout(60):
            while self.asked[path] < count:
                await asyncio.sleep(0.02)


@pytest.fixture
async def outside() -> AsyncIterator[Outside]:
    outside = Outside()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", outside.handle)
    async with TestServer(app, host="127.0.0.1") as server:
        outside.url = str(server.make_url("")).rstrip("/")
        yield outside
        outside.answers.set()


async def test_what_a_killed_server_had_in_hand_is_done_by_another(
    outside: Outside, new_database: Callable[[], str], tmp_path: Path
) -> None:
    url = new_database()
    settings = {"worker_timeout": 2, "allow_local_requests": True, "shutdown_timeout": 1}
    async with server_process(url, tmp_path / "data", **settings) as killed:
        project, mirror = await _project(killed, outside)
        await _merge_request(killed, project)
        await outside.until_asked("/hook", 1)
        await outside.until_asked("/target.git/info/refs", 1)
        async with server_process(url, tmp_path / "data", **settings) as other:
            killed.kill()
            await killed.wait()
            outside.answers.set()
            assert (await other.root.get(f"/projects/{project}")).status == 200
            async with (
                database.connect(url, base_url="") as connected,
                connected.transaction() as transaction,
            ):
                await transaction.run(GIVE_UP_WAITING)
            await outside.until_asked("/hook", 2)
            await outside.until_asked("/target.git/info/refs", 2)
            assert len(set(outside.deliveries)) == 1
            await _until_done(other, project, mirror)


async def _project(server: ServerProcess, outside: Outside) -> tuple[int, int]:
    """A project with a commit, a status check, and a mirror that is being pushed to."""
    project = (await server.root.post("/projects", {"name": "several"})).body["id"]
    await _commit(server, project, "main")
    check = {"name": "QA", "external_url": f"{outside.url}/hook"}
    made = await server.root.post(f"/projects/{project}/external_status_checks", check)
    assert made.status == 201, made
    mirror = {"url": f"{outside.url}/target.git", "enabled": True}
    made = await server.root.post(f"/projects/{project}/remote_mirrors", mirror)
    assert made.status == 201, made
    await _commit(server, project, "topic")
    return project, made.body["id"]


async def _commit(server: ServerProcess, project: int, branch: str) -> None:
    body = {"branch": branch, "content": branch, "commit_message": "Begin"}
    if branch != "main":
        body["start_branch"] = "main"
    answer = await server.root.post(f"/projects/{project}/repository/files/{branch}%2Emd", body)
    assert answer.status == 201, answer


async def _merge_request(server: ServerProcess, project: int) -> None:
    body = {"source_branch": "topic", "target_branch": "main", "title": "Change"}
    assert (await server.root.post(f"/projects/{project}/merge_requests", body)).status == 201


async def _until_done(server: ServerProcess, project: int, mirror: int) -> None:
    """The target's refusal is recorded: the run that was cut off counts no more."""
    async with asyncio.timeout(30):
        while True:
            shown = (await server.root.get(f"/projects/{project}/remote_mirrors/{mirror}")).body
            if shown["last_error"]:
                return
            await asyncio.sleep(0.05)
