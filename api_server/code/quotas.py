"""Limits on the size of a project: of its repository and its LFS objects together."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
from cachetools import TTLCache

from api_server.code import lfs_queries
from api_server.git.repositories import Repositories
from api_server.services import Key
from api_server.state.database import Executor

#: Seconds after which a repository is measured again. In between, the bytes of pushes are added.
MEASURED_FOR_SECONDS = 600.0

_MORE = "Please contact your administrator for more information."


class QuotaExceeded(Exception):
    """The project has not enough room. The message is for the user who pushes. `limit` is the maximum size of a
    project, as GitLab writes sizes."""

    def __init__(self, text: str, limit: str) -> None:
        super().__init__(text)
        self.limit = limit


@attrs.define
class _Repository:
    """The bytes of a repository's objects: as measured, plus what has arrived since."""

    size: int


class Quotas:
    """The limits of all projects. `limit` is in bytes for each project; 0 means no limit.

    Objects that this process is receiving count as well, so that two objects that arrive at the same time do not use
    the same room.
    """

    def __init__(self, limit: int, repositories: Repositories) -> None:
        self._limit = limit
        self._repositories = repositories
        self._measured: TTLCache[int, _Repository] = TTLCache(maxsize=10_000, ttl=MEASURED_FOR_SECONDS)
        self._arriving: Counter[int] = Counter()

    def forget(self) -> None:
        """Make all repositories be measured again."""
        self._measured.clear()

    async def take(self, database: Executor, project_id: int, size: int) -> None:
        """Count the `size` bytes of a push or a commit. Raise `QuotaExceeded`."""
        if self._limit:
            repository = await self._check_size(database, project_id, size)
            repository.size += size

    @asynccontextmanager
    async def arriving(self, database: Executor, project_id: int, size: int) -> AsyncIterator[None]:
        """Reserve room for an LFS object of `size` bytes while it arrives. Raise `QuotaExceeded`."""
        self._arriving[project_id] += size
        try:
            await self.check(database, project_id, 0)
            yield
        finally:
            self._arriving -= Counter({project_id: size})

    async def check(self, database: Executor, project_id: int, size: int) -> None:
        """Raise `QuotaExceeded` unless there is room for `size` more bytes."""
        if self._limit:
            await self._check_size(database, project_id, size)

    async def _check_size(self, database: Executor, project_id: int, size: int) -> _Repository:
        """Return the size of the project's repository. Raise `QuotaExceeded` unless there is room for `size` more
        bytes."""
        repository = self._measured.get(project_id)
        if repository is None:
            measured = _Repository(await self._repositories.size(project_id))
            repository = self._measured.setdefault(project_id, measured)
        stored_lfs = await lfs_queries.lfs_bytes(database, project_id)
        self._check(project_id, stored_lfs + repository.size, size)
        return repository

    def _check(self, project_id: int, stored: int, size: int) -> None:
        limit = human_size(self._limit)
        arriving = self._arriving[project_id] + size
        if not arriving or stored + arriving <= self._limit:
            return
        if stored <= self._limit:
            raise QuotaExceeded(
                f"Your push to this repository would cause it to exceed the size limit of {limit} so it has been"
                f" rejected. {_MORE}",
                limit,
            )
        over = f"{limit} by {human_size(stored - self._limit)}"
        raise QuotaExceeded(
            f"Your push has been rejected, because this repository has exceeded its size limit of {over}. {_MORE}",
            limit,
        )


QUOTAS = Key[Quotas]("quotas")


def human_size(size: float) -> str:
    """Return a size as GitLab writes it: `10 GiB`, `1.5 MiB`."""
    units = ("Bytes", "KiB", "MiB", "GiB", "TiB")
    unit = 0
    while size >= 1024 and unit < len(units) - 1:
        size /= 1024
        unit += 1
    return f"{round(size, 2):g} {units[unit]}"
