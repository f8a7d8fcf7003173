"""The databases of the service under test: one PostgreSQL, or a primary with a standby behind PgBouncer."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import attrs

from forgelet.local.data_directory import DataDirectory
from forgelet.local.embedded_postgres import DATABASE, ROLE, SUPERUSER, Cluster, autocommitting, make_folder
from forgelet.local.processes import Account
from scripts.faults import surroundings
from scripts.faults.surroundings import Proxy, Shape
from scripts.harness.processes import KeptProcess, KeptProgram, retry_until, wait_until
from tests.support import pgbouncer, standbys
from tests.support.ports import free_port

#: Seconds within which a standby has to catch up with the primary.
CATCH_UP_SECONDS = 60.0
#: Synchronous replication, and settings with which it resumes soon, without a copy, after a server was away.
_SETTINGS = {
    "synchronous_standby_names": "standby",
    "wal_keep_size": "128MB",
    "wal_retrieve_retry_interval": "500ms",
}
_HAS_REPLAYED = """
    SELECT coalesce(bool_or(sync_state = 'sync' AND replay_lsn >= '{}'::pg_lsn), false) FROM pg_stat_replication
"""


@attrs.frozen(eq=False)
class Server:
    """A PostgreSQL server. Its data are in `folder`/data, its socket is in `sockets`."""

    folder: Path
    sockets: Path
    password: str
    kept: KeptProcess

    def url(self, database: str = DATABASE, role: str = ROLE) -> str:
        return standbys.url_of(self.sockets, self.password, database, role)

    async def run(self, statement: str) -> object:
        """Run a statement as superuser; return the first value of its result."""
        return await asyncio.to_thread(standbys.run, self.url("postgres", "postgres"), statement)


@attrs.define(eq=False)
class Replication:
    """The primary and the standby. Processes that it starts end with the stack."""

    primary: Server
    _logs: Path
    _stack: AsyncExitStack
    standby: Server | None = None
    _count: int = 0

    @property
    def servers(self) -> Sequence[Server]:
        return [server for server in (self.primary, self.standby) if server is not None]

    async def begin(self, folder: Path) -> None:
        """Start a standby in an empty folder. From now on, commits wait for it."""
        for name, value in _SETTINGS.items():
            await self.primary.run(f"ALTER SYSTEM SET {name} = '{value}'")
        await self.primary.run("SELECT pg_reload_conf()")
        await self.follow(folder)

    async def promote(self) -> Path:
        """End the primary for good, whatever it was doing, and promote the standby. Return the folder of the lost
        primary, which is empty then."""
        assert self.standby is not None
        failed, self.primary, self.standby = self.primary, self.standby, None
        await failed.kept.end()
        if await self.primary.run("SELECT pg_promote()") is not True:
            raise RuntimeError("The standby was not promoted.")
        await asyncio.to_thread(shutil.rmtree, failed.folder / "data")
        return failed.folder

    async def caught_up(self) -> bool:
        """Return whether the standby shows all current content of the primary within a minute."""
        position = await self.primary.run("SELECT pg_current_wal_flush_lsn()")
        statement = _HAS_REPLAYED.format(position)
        return bool(await retry_until(lambda: self.primary.run(statement), CATCH_UP_SECONDS, pause=0.05))

    async def follow(self, folder: Path) -> None:
        """Start a new standby in the folder."""
        await asyncio.to_thread(standbys.copied, self.primary.url("postgres", "postgres"), folder)
        self._count += 1
        owner = await asyncio.to_thread(folder.stat)
        kept = KeptProgram(
            f"replica-{self._count}" if self._count > 1 else "replica",
            self._logs,
            standbys.command(folder),
            environment={},
            cwd=Path("/"),
            account=Account.of(owner.st_uid),
            stop_signal=signal.SIGINT,
        )
        self.standby = Server(folder, folder, self.primary.password, kept)
        await self._stack.enter_async_context(kept)
        if not await self.caught_up():
            raise RuntimeError(f"The replica does not follow: {kept.newest_log().read_text()}")


READY_SECONDS = 60.0


@attrs.frozen
class Databases:
    """All databases of the service. The API servers connect to `proxy`; PgBouncer, if there is one, is behind it, and
    then the primary."""

    replication: Replication
    proxy: Proxy
    pooler: "Pooler | None"
    #: Settings of API servers, without the prefix of variables.
    settings: Mapping[str, str]

    @property
    def postgres(self) -> KeptProcess:
        """The primary."""
        return self.replication.primary.kept

    @property
    def folder(self) -> Path:
        """The folder of the primary's disk."""
        return self.replication.primary.folder

    @property
    def kept(self) -> Sequence[KeptProcess]:
        return [
            *(server.kept for server in self.replication.servers),
            *([self.pooler.kept] if self.pooler else []),
        ]

    async def fail_over(self) -> None:
        """End the primary for good. The replica takes its place, and gets a new replica in the old folder."""
        folder = await self.replication.promote()
        if self.pooler is not None:
            self.pooler.lead_to(self.replication.primary)
        await self.replication.follow(folder)


@attrs.frozen
class Pooler:
    """PgBouncer, whose configuration names the primary."""

    folder: Path
    port: int
    kept: KeptProgram

    @classmethod
    def before(cls, primary: Server, data: DataDirectory) -> "Pooler":
        folder, port = data.path.parent / "pgbouncer", free_port()
        folder.mkdir(mode=0o700)
        command, variables = pgbouncer.command(folder, primary.url(), port), dict(os.environ)
        kept = KeptProgram("pgbouncer", data.part("logs"), command, environment=variables, cwd=folder)
        return cls(folder, port, kept)

    def lead_to(self, primary: Server) -> None:
        pgbouncer.command(self.folder, primary.url(), self.port)
        self.kept.signal(signal.SIGHUP)


@contextlib.asynccontextmanager
async def running_databases(data: DataDirectory, shape: Shape) -> AsyncIterator[Databases]:
    """Run all databases for the duration of the block."""
    async with contextlib.AsyncExitStack() as stack:
        primary = await _primary(data, stack)
        replication = Replication(primary, data.part("logs"), stack)
        if shape.replicated:
            await replication.begin(_disk(data, "replica", stack))
        pooler = Pooler.before(primary, data) if shape.pooled else None
        if pooler is not None:
            await stack.enter_async_context(pooler.kept)
        proxy = await stack.enter_async_context(Proxy(free_port(), _upstream(replication, pooler)))
        settings = _settings(replication, pgbouncer.through(primary.url(), proxy.port), pooler)
        yield Databases(replication, proxy, pooler, settings)


def _disk(data: DataDirectory, name: str, stack: contextlib.AsyncExitStack) -> Path:
    folder = make_folder(data.path / name)
    stack.enter_context(surroundings.mounted(folder, surroundings.POSTGRES_SIZE, like=folder))
    return folder


async def _primary(data: DataDirectory, stack: contextlib.AsyncExitStack) -> Server:
    folder, password = _disk(data, "postgres", stack), data.secret("postgres-password")
    cluster = Cluster(folder, password, durable=True)
    # The start blocks, and the child ends with the thread that has started it.
    thread = stack.enter_context(ThreadPoolExecutor(max_workers=1))
    loop = asyncio.get_running_loop()
    postgres = KeptProcess(
        "postgresql", data.part("logs"), lambda log: loop.run_in_executor(thread, cluster.start, log)
    )
    await stack.enter_async_context(postgres)
    if not await wait_until(lambda: postgres.pid, READY_SECONDS):
        raise RuntimeError(f"PostgreSQL did not start: {postgres.newest_log().read_text()}")
    _bounded(cluster)
    (sockets,) = parse_qs(urlsplit(cluster.url()).query)["host"]
    return Server(folder, Path(sockets), password, postgres)


def _upstream(replication: Replication, pooler: Pooler | None) -> Callable[[], str | int]:
    if pooler is not None:
        return lambda: pooler.port
    return lambda: f"{replication.primary.sockets}/.s.PGSQL.5432"


def _settings(replication: Replication, url: str, pooler: Pooler | None) -> dict[str, str]:
    """Return the settings of API servers. Each database may be the primary, so the other one is listed as replica
    too."""
    urls = [server.url() for server in replication.servers]
    settings = {"DATABASE_URL": url}
    if pooler is not None:
        settings["DATABASE_DIRECT_URL"] = standbys.several_hosts(*urls)
    if replication.standby is not None:
        settings["DATABASE_REPLICA_URLS"] = " ".join(urls)
    return settings


def _bounded(cluster: Cluster) -> None:
    """Limit PostgreSQL's write-ahead log, so that it fits on its small disk."""
    with autocommitting(cluster.url("postgres", SUPERUSER)) as cursor:
        for name, value in (("max_wal_size", "128MB"), ("min_wal_size", "32MB")):
            cursor.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        cursor.execute("SELECT pg_reload_conf()")
