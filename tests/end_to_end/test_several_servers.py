"""Several servers with one database and one data directory: one is killed, and all write at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from itertools import chain
from pathlib import Path
from typing import Any

import attrs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from api_server.git.upkeep import Style, pack
from api_server.state import database
from tests.support.forge import ROOT_TOKEN
from tests.support.git_client import Git
from tests.support.server_process import ServerProcess, server_process

#: As if the time had passed for which a delivery stays with the server that has taken it.
GIVE_UP_WAITING = "UPDATE status_check_deliveries SET next_attempt_at = %(now)s WHERE status = 'queued'"


@attrs.define
class Outside:
    """A receiver of deliveries and a mirror's target, which answer only when `answers` is set."""

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
    """Create a project with a commit, a status check, and a mirror to which a push is under way."""
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
    """Wait until the target's refusal is recorded: the interrupted run does not count any more."""
    async with asyncio.timeout(30):
        while True:
            shown = (await server.root.get(f"/projects/{project}/remote_mirrors/{mirror}")).body
            if shown["last_error"]:
                return
            await asyncio.sleep(0.05)


ROUNDS = 3
PUSHERS = 2  # of each server


async def test_what_two_servers_do_in_one_repository_at_once_is_all_there(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    url, data = new_database(), tmp_path / "data"
    settings = {"git_processes_each": 20}
    async with server_process(url, data, **settings) as one, server_process(url, data, **settings) as two:
        made = await one.root.post("/projects", {"name": "shared", "initialize_with_readme": True})
        assert made.status == 201, made
        project = made.body["id"]
        (repository,) = (data / "repositories").glob(f"[0-9]*/{project}.git")
        pushing = [
            _push(server, tmp_path / f"clone{number}-{pusher}")
            for number, server in enumerate((one, two))
            for pusher in range(PUSHERS)
        ]
        over = asyncio.Event()
        packing = asyncio.create_task(_pack(repository, over))
        merging = asyncio.gather(
            *(_merge(server, project, name) for server, name in ((one, "a"), (two, "b")))
        )
        pushed: dict[str, str] = dict(chain.from_iterable(await asyncio.gather(*pushing)))
        merged = await merging
        over.set()
        assert await packing > 0
        refs = await _refs(repository)
        assert {ref: refs.get(ref) for ref in pushed} == pushed
        git = Git(tmp_path)
        for commit in chain.from_iterable(merged):
            await git(
                "--git-dir", str(repository), "merge-base", "--is-ancestor", commit, refs["refs/heads/main"]
            )
        told = await git(
            "--git-dir", str(repository), "fsck", "--full", "--strict", "--no-dangling", "--no-progress"
        )
        assert told == ""
        for server in (one, two):
            shown = await server.root.get(f"/projects/{project}/repository/branches?per_page=100")
            assert {branch["commit"]["id"] for branch in shown.body} >= set(pushed.values())


async def _push(server: ServerProcess, folder: Path) -> list[tuple[str, str]]:
    """Clone, and push a new commit to a branch of its own and to one that is new each time; return the commit of each
    ref."""
    address = server.base.replace("://", f"://root:{ROOT_TOKEN}@")
    parent = Git(folder.parent)
    await parent("clone", "--quiet", f"{address}/root/shared.git", str(folder))
    git, pushed = Git(folder), {}
    for number in range(ROUNDS):
        commit = await git.commit(**{f"{folder.name}.txt": f"{number}"})
        for branch in (folder.name, f"{folder.name}-{number}"):
            await _pushed(git, branch)
            pushed[f"refs/heads/{branch}"] = commit
    return list(pushed.items())


async def _pushed(git: Git, branch: str) -> None:
    """Push again after a refusal: git refuses a push, and keeps nothing of it, if a packing git has just removed the
    folder into which it was to move an object. Continuous packing makes this likely."""
    for _ in range(10):
        ran = await git.run("push", "--quiet", "origin", f"HEAD:refs/heads/{branch}")
        if "unable to migrate objects" not in ran.output:
            break
    assert ran.code == 0, ran.output


async def _merge(server: ServerProcess, project: int, name: str) -> list[str]:
    """Merge requests from new branches into the branch into which the other server merges as well; return their
    commits."""
    commits = []
    for number in range(ROUNDS):
        branch = f"topic-{name}-{number}"
        body = {"branch": branch, "start_branch": "main", "content": branch, "commit_message": branch}
        await _until(201, lambda body=body, branch=branch: server.root.post(
            f"/projects/{project}/repository/files/{branch}", body
        ))  # fmt: skip
        asked = {"source_branch": branch, "target_branch": "main", "title": branch}
        request = await _until(
            201, lambda asked=asked: server.root.post(f"/projects/{project}/merge_requests", asked)
        )
        path = f"/projects/{project}/merge_requests/{request['iid']}/merge"
        merged = await _until(200, lambda path=path: server.root.put(path, {}))
        commits.append(merged["sha"])
    return commits


async def _until(status: int, ask: Callable[[], Any]) -> Any:
    """Return the final answer: conflicts with the other server are reported (409 and similar), and the request is
    repeated."""
    async with asyncio.timeout(60):
        while (answer := await ask()).status != status:
            assert answer.status in (400, 405, 406, 409, 422, 503), answer
            await asyncio.sleep(0.05)
    return answer.body


async def _pack(repository: Path, over: asyncio.Event) -> int:
    """Pack repeatedly, as the servers do now and then; return how often."""
    count = 0
    while not over.is_set():
        count += await pack(repository, Style(), 0.0)
        await asyncio.sleep(0.05)
    return count


async def _refs(repository: Path) -> dict[str, str]:
    told = await Git(repository)("for-each-ref", "--format=%(refname) %(objectname)")
    return dict(line.split(" ", 1) for line in told.splitlines())
