"""PostgreSQL servers of which one is the primary, and the other, where there is one, follows it and can take its place.

Commits are told of when the standby has them on disk, as docs/database.md says it of a fail-over that loses nothing.
"""

import asyncio
import shutil
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import attrs

from forgelet.local.embedded_postgres import DATABASE, ROLE
from forgelet.local.processes import Account
from scripts.faults.processes import Kept, KeptProgram
from tests.support import standbys

#: Within which a standby has all that the primary has, on a machine that has time.
CATCH_UP_SECONDS = 60.0
#: Synchronous replication; and what makes it come back soon, and without a copy, after one of them was away.
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
    """Its data are in `folder`/data, its socket is in `sockets`."""

    folder: Path
    sockets: Path
    password: str
    kept: Kept

    def url(self, database: str = DATABASE, role: str = ROLE) -> str:
        return standbys.url_of(self.sockets, self.password, database, role)

    async def run(self, statement: str) -> object:
        """The first value of what a superuser's statement gives."""
        return await asyncio.to_thread(standbys.run, self.url("postgres", "postgres"), statement)


@attrs.define(eq=False)
class Replication:
    """Which of the servers is which. What it starts ends with `stack`."""

    primary: Server
    _logs: Path
    _stack: AsyncExitStack
    standby: Server | None = None
    _made: int = 0

    @property
    def servers(self) -> Sequence[Server]:
        return [one for one in (self.primary, self.standby) if one is not None]

    async def begin(self, folder: Path) -> None:
        """With a standby in an empty folder, for which all commits wait from now on."""
        for name, value in _SETTINGS.items():
            await self.primary.run(f"ALTER SYSTEM SET {name} = '{value}'")
        await self.primary.run("SELECT pg_reload_conf()")
        await self.follow(folder)

    async def promote(self) -> Path:
        """The primary is lost for good, whatever it was doing, and the standby is the primary. The folder of what was
        lost, which is empty."""
        assert self.standby is not None
        lost, self.primary, self.standby = self.primary, self.standby, None
        await lost.kept.end()
        if await self.primary.run("SELECT pg_promote()") is not True:
            raise RuntimeError("The standby was not promoted.")
        await asyncio.to_thread(shutil.rmtree, lost.folder / "data")
        return lost.folder

    async def caught_up(self) -> bool:
        """Whether the standby shows, within a minute, all that the primary has by now."""
        deadline = asyncio.get_running_loop().time() + CATCH_UP_SECONDS
        position = await self.primary.run("SELECT pg_current_wal_flush_lsn()")
        while not await self.primary.run(_HAS_REPLAYED.format(position)):
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    async def follow(self, folder: Path) -> None:
        """Has a new standby there."""
        await asyncio.to_thread(standbys.copied, self.primary.url("postgres", "postgres"), folder)
        self._made += 1
        owner = await asyncio.to_thread(folder.stat)
        kept = KeptProgram(
            f"replica-{self._made}" if self._made > 1 else "replica",
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
