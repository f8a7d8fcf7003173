"""Starting, reloading and stopping while clients are served."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import attrs
import psycopg2
import pytest

from api_server.state import migrate
from tests.support.forge import ROOT_TOKEN, Client
from tests.support.git_client import Git
from tests.support.ports import free_port
from tests.support.raw_push import NO_COMMIT, commands, credentials, pack_of
from tests.support.runner import running_job
from tests.support.server_process import ServerProcess, server_process
from tests.support.waiting import seconds_of
from tests.support.wire import request, talk

TABLES = "SELECT count(*) FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'public'"


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.fixture
def empty_database(postgres_url: str) -> Iterator[str]:
    name = "nobody_migrates"
    with contextlib.closing(psycopg2.connect(postgres_url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
            yield urlunsplit(urlsplit(postgres_url)._replace(path=f"/{name}"))
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def _ended(module: str, **environment: object) -> str:
    """Return the messages of a process that cannot start."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module,
        env=os.environ | {name: str(value) for name, value in environment.items()},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode
    return said.decode().strip()


async def test_a_second_server_on_a_taken_port_touches_nothing(
    taken_port: int, empty_database: str, tmp_path: Path
) -> None:
    said = await _ended(
        "api_server",
        FORGELET_API_PORT=taken_port,
        FORGELET_API_DATABASE_URL=empty_database,
        FORGELET_API_DATA_DIR=tmp_path / "data",
    )
    assert f"annot listen on 127.0.0.1:{taken_port}: " in said
    assert len(said.splitlines()) == 1
    with contextlib.closing(psycopg2.connect(empty_database)) as connection, connection.cursor() as cursor:
        cursor.execute(TABLES)
        assert cursor.fetchone() == (0,)
    assert not (tmp_path / "data").exists()


async def test_a_second_edge_on_a_taken_port_touches_nothing(taken_port: int, tmp_path: Path) -> None:
    said = await _ended(
        "storage_edge", FORGELET_EDGE_PORT=taken_port, FORGELET_EDGE_DATA_DIR=tmp_path / "data"
    )
    assert f"annot listen on 127.0.0.1:{taken_port}: " in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "data").exists()


async def test_clients_are_told_to_come_back_while_the_database_is_migrated(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    url = new_database()
    async with server_process(url, tmp_path / "data") as server:
        server.kill()
        await server.wait()
        with contextlib.closing(psycopg2.connect(url)) as other:
            with other.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_lock(%s)", (migrate._LOCK,))
            starting = asyncio.create_task(server.start())
            async with asyncio.timeout(30):
                while not await _is_alive(server.session, server.base):
                    await asyncio.sleep(0.02)
            for path in ("/-/readiness", "/api/v4/version", "/"):
                async with server.session.get(server.base + path) as answer:
                    assert (answer.status, await answer.json()) == (503, {"status": "starting"})
                    assert answer.headers["Retry-After"] == "5"
            assert not starting.done()
        await starting
        assert (await server.root.get("/version")).status == 200


async def _is_alive(session: aiohttp.ClientSession, base: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        async with session.get(f"{base}/-/liveness") as answer:
            return answer.status == 200
    return False


CONTENT = bytes(range(256)) * 1000
OID = hashlib.sha256(CONTENT).hexdigest()
CONFIG = "build:\n  script: echo\n"
#: Seconds; a process that waits for several things in turn needs several times as many.
TIMEOUT = 4.0


@attrs.define
class Body:
    """A body whose second half is held back until `rest` is set. When `begun` is set, the server has asked for the
    body."""

    content: bytes
    begun: asyncio.Event = attrs.field(factory=asyncio.Event)
    rest: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def pieces(self) -> AsyncIterator[bytes]:
        half = len(self.content) // 2
        yield self.content[:half]
        self.begun.set()
        await self.rest.wait()
        yield self.content[half:]

    async def sent(self, session: aiohttp.ClientSession, method: str, url: str, **headers: str) -> int:
        """Send the body; return the status of the answer."""
        wanted = {"Content-Length": str(len(self.content)), **headers}
        async with session.request(method, url, data=self.pieces(), headers=wanted, expect100=True) as answer:
            # git's answer may have begun before
            if answer.content_type != "application/x-git-receive-pack-result":
                assert answer.headers["Connection"] == "close"
            return answer.status


async def test_what_is_being_sent_arrives_and_nothing_else_begins(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    async with server_process(new_database(), tmp_path / "data", operations_port=free_port()) as server:
        project = (await server.root.post("/projects", {"name": "stop"})).body
        job = await running_job(server.root, project["id"], CONFIG)
        sha, push = await _push(tmp_path / "work")
        lfs, artifact = Body(CONTENT), Body(_form(CONTENT))
        basic, url = credentials(ROOT_TOKEN), f"{server.base}/{project['path_with_namespace']}.git"
        sending = [
            push.sent(
                server.session, "POST", f"{url}/git-receive-pack",
                **{"Authorization": basic, "Content-Type": "application/x-git-receive-pack-request"},
            ),
            lfs.sent(
                server.session, "PUT", f"{url}/info/lfs/objects/{OID}/{len(CONTENT)}", Authorization=basic
            ),
            artifact.sent(
                server.session, "POST", f"{server.base}/api/v4/jobs/{job.id}/artifacts",
                **{"JOB-TOKEN": job.token, "Content-Type": "multipart/form-data; boundary=limit"},
            ),
        ]  # fmt: skip
        async with talk(_port(server)) as idle, asyncio.timeout(60):
            await idle.send(request("GET", "/-/liveness"))
            assert (await idle.answer())[0] == 200
            answers = asyncio.gather(*sending)
            for body in (push, lfs, artifact):
                await body.begun.wait()
            server.signal(signal.SIGTERM)
            assert await idle.rest() == b""
            await _until_refused(server)
            async with server.session.get(f"{server.operations}/-/readiness") as answer:
                assert (answer.status, await answer.json()) == (503, {"status": "stopping"})
            for body in (push, lfs, artifact):
                body.rest.set()
            assert await answers == [200, 200, 201]
            assert await server.wait() == 0
        await server.start()
        branch = await server.root.get(f"/projects/{project['id']}/repository/branches/new")
        assert branch.body["commit"]["id"] == sha
        kept = {
            f"{url}/info/lfs/objects/{OID}": {"Authorization": basic},
            f"{server.base}/api/v4/jobs/{job.id}/artifacts": {"JOB-TOKEN": job.token},
        }
        for where, headers in kept.items():
            async with server.session.get(where, headers=headers) as answer:
                assert (answer.status, await answer.read()) == (200, CONTENT)


async def test_a_client_that_stalls_is_cut_off_in_time(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    settings = {"shutdown_timeout": TIMEOUT, "body_timeout": 100, "operations_port": free_port()}
    async with server_process(new_database(), tmp_path / "data", **settings) as server:
        project = (await server.root.post("/projects", {"name": "stop"})).body
        url = f"{server.base}/{project['path_with_namespace']}.git/info/lfs/objects/{OID}/{len(CONTENT)}"
        body = Body(CONTENT)
        sending = asyncio.create_task(
            body.sent(server.session, "PUT", url, Authorization=credentials(ROOT_TOKEN))
        )
        await body.begun.wait()
        server.signal(signal.SIGTERM)
        assert await seconds_of(server.wait) < 2.75 * TIMEOUT
        assert isinstance((await asyncio.gather(sending, return_exceptions=True))[0], aiohttp.ClientError)


async def _push(folder: Path) -> tuple[str, Body]:
    """Create a commit, and push it to a branch `new`."""
    git = Git(folder)
    await git.init()
    sha = await git.commit("New", **{"new.txt": "new"})
    return sha, Body(commands((NO_COMMIT, sha, "refs/heads/new")) + await pack_of(git, "main"))


def _form(content: bytes) -> bytes:
    head = b'--limit\r\nContent-Disposition: form-data; name="file"; filename="artifacts.zip"\r\n\r\n'
    return head + content + b"\r\n--limit--\r\n"


def _port(server: ServerProcess) -> int:
    return int(server.base.rpartition(":")[2])


async def _until_refused(server: ServerProcess) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", _port(server))
        except ConnectionRefusedError:
            return
        writer.close()
        await asyncio.sleep(0.01)


READ = "the settings were read again"
REFUSED = "the settings cannot be read again, the old ones stay"


@attrs.frozen
class Log:
    """A log file with JSON in it."""

    path: Path

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Return the fields of an event's lines, without those that every line has."""
        found = [json.loads(line) for line in self.path.read_text().splitlines()]
        every = {"event", "timestamp", "level", "logger"}
        return [{k: v for k, v in line.items() if k not in every} for line in found if line["event"] == event]

    async def until(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait for the `count`th line of an event; return it."""
        async with asyncio.timeout(30):
            while not self.path.exists() or len(self.lines(event)) < count:
                await asyncio.sleep(0.02)
        return self.lines(event)[count - 1]


async def test_limits_tokens_and_the_log_are_those_of_now(
    new_database: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, log, old = tmp_path / "settings.toml", Log(tmp_path / "log"), Log(tmp_path / "log.1")
    monkeypatch.setenv("FORGELET_SETTINGS", str(file))
    section = f'[api_server]\nlog_file = "{log.path}"\nlog_format = "json"\nwork = false\n'
    file.write_text(section + 'log_level = "WARNING"\n')
    async with server_process(new_database(), tmp_path / "data") as server:
        project = (await server.root.post("/projects", {"name": "reload"})).body["id"]
        jobs = f"/projects/{project}/jobs"
        made = await server.root.post("/user/runners", {"runner_type": "project_type", "project_id": project})
        poll = {"token": made.body["token"], "last_update": "x"}
        waiting = asyncio.create_task(server.root.post("/jobs/request", poll))
        assert [(await server.root.get(jobs)).status for _ in range(3)] == [200] * 3
        assert log.lines("request") == []

        file.write_text(section + "jobs_rate_limit = 4\ndatabase_pool = 3\n")
        (tmp_path / "data-root-token").write_text("flpat-another-token-of-root\n")
        log.path.rename(old.path)
        server.signal(signal.SIGHUP)
        assert await log.until(READ) == {
            "changed": ["jobs_rate_limit", "log_level", "root_token"],
            "at_next_start": ["database_pool"],
        }
        assert old.lines(READ) == []
        assert (await server.root.get(jobs)).status == 401
        root = Client(server.session, server.base, "flpat-another-token-of-root")
        assert [(await root.get(jobs)).status for _ in range(3)] == [200, 429, 429]
        await log.until("request", 4)

        file.write_text(section + "jobs_rate_limit = 600\nlog_lvel = 3\n")
        server.signal(signal.SIGHUP)
        assert "log_lvel" in (await log.until(REFUSED))["problem"]
        assert (await root.get(jobs)).status == 429
        assert not waiting.done()
        await _makes_a_job(root, project)
        assert (await waiting).status == 201


async def _makes_a_job(client: Client, project: int) -> None:
    body = {"branch": "main", "content": "build:\n  script: echo\n", "commit_message": "Begin [ci skip]"}
    url = f"/projects/{project}/repository/files/%2Egitlab-ci%2Eyml"
    assert (await client.post(url, body)).status == 201
    assert (await client.post(f"/projects/{project}/pipeline", {"ref": "main"})).status == 201
