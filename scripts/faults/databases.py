"""PostgreSQL, and what stands before it: a proxy that can break connections, and PgBouncer."""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import attrs
import psycopg2

from forgelet.local import cluster_folders
from forgelet.local.data_directory import DataDirectory
from forgelet.local.embedded_postgres import SUPERUSER, Cluster
from scripts.faults import disks
from scripts.faults.processes import Kept, KeptPostgres, KeptProgram, until
from scripts.faults.proxy import Proxy
from scripts.faults.shapes import Shape
from tests.support import pgbouncer
from tests.support.ports import free_port

READY_SECONDS = 60.0


@attrs.frozen
class Databases:
    """`proxy` is what the API servers connect to; behind it is `pooler`, if there is one, and then `postgres`."""

    folder: Path
    postgres: Kept
    proxy: Proxy
    pooler: Kept | None
    #: Of API servers, without the prefix.
    settings: Mapping[str, str]

    @property
    def kept(self) -> Sequence[Kept]:
        return [one for one in (self.postgres, self.pooler) if one is not None]


@contextlib.asynccontextmanager
async def running_databases(data: DataDirectory, shape: Shape) -> AsyncIterator[Databases]:
    """All of them, started; they end with the block."""
    async with contextlib.AsyncExitStack() as stack:
        folder = cluster_folders.made(data.path / "postgres")
        stack.enter_context(disks.mounted(folder, disks.POSTGRES_SIZE, like=folder))
        password = data.secret("postgres-password")
        cluster = Cluster(folder, password, durable=True)
        thread = stack.enter_context(ThreadPoolExecutor(max_workers=1))
        postgres = KeptPostgres(data.part("logs"), cluster, thread)
        await stack.enter_async_context(postgres)
        if not await until(lambda: postgres.pid, READY_SECONDS):
            raise RuntimeError(f"PostgreSQL did not start: {postgres.newest_log().read_text()}")
        _bounded(cluster)
        direct = await stack.enter_async_context(
            Proxy(free_port(), lambda: f"{_socket_folder(cluster)}/.s.PGSQL.5432")
        )
        pooler, port, pooled = None, free_port(), direct
        if shape.pooled:
            pooler = _pooler(data, cluster, port)
            await stack.enter_async_context(pooler)
            pooled = await stack.enter_async_context(Proxy(free_port(), lambda: port))
        settings = {"DATABASE_URL": pgbouncer.through(cluster.url(), pooled.port)}
        if shape.pooled:
            settings["DATABASE_DIRECT_URL"] = pgbouncer.through(cluster.url(), direct.port)
        yield Databases(folder, postgres, pooled, pooler, settings)


def _socket_folder(cluster: Cluster) -> str:
    (folder,) = parse_qs(urlsplit(cluster.url()).query)["host"]
    return folder


def _bounded(cluster: Cluster) -> None:
    """PostgreSQL's log of what it writes fits on its small disk."""
    with contextlib.closing(psycopg2.connect(cluster.url("postgres", SUPERUSER))) as connection:
        connection.autocommit = True
        for name, value in (("max_wal_size", "128MB"), ("min_wal_size", "32MB")):
            connection.cursor().execute(f"ALTER SYSTEM SET {name} = '{value}'")
        connection.cursor().execute("SELECT pg_reload_conf()")


def _pooler(data: DataDirectory, cluster: Cluster, port: int) -> KeptProgram:
    folder = data.path.parent / "pgbouncer"
    folder.mkdir(mode=0o700)
    command = pgbouncer.command(folder, cluster.url(), port)
    return KeptProgram("pgbouncer", data.part("logs"), command, environment=dict(os.environ), cwd=folder)
