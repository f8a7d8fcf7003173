"""The order at a start: the port, then the database, then work; and what clients hear meanwhile."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import psycopg2
import pytest

from api_server.state import migrate
from tests.support.server_process import server_process

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
    """What a process says that cannot start."""
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
