"""Building archives: each once, however many wait for it; no more at a time than may be; none for nobody."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import attrs
from aiohttp import web

from api_server.git import trees
from api_server.git.errors import GitTimeoutError
from api_server.git.trees import Archive
from api_server.state.errors import Unavailable
from api_server.state.queue import QUEUE
from api_server.static_objects.archive_files import ArchiveFiles, Bounds, GrowingFile, TooLargeError
from api_server.web.context import SETTINGS
from common.concurrency import ConcurrencyLimiter, TooBusy, ended

#: How often a waiter looks whether her client is still there, in seconds.
_LOOKS_EVERY = 0.5
#: Seconds for which it is remembered that an archive is too large, and of how many.
_REMEMBERED, _MOST_REMEMBERED = 600, 1000


@attrs.frozen(kw_only=True)
class Asker:
    """Who wants an archive: the keys under which builds are counted, and whether she has left."""

    keys: Sequence[Hashable]
    has_left: Callable[[], bool]


@attrs.define(eq=False)
class _Build:
    file: GrowingFile
    task: "asyncio.Task[None]"
    waiters: int = 0


class ArchiveStore:
    """Finished archives, and those that are being built."""

    def __init__(self, files: ArchiveFiles, places: ConcurrencyLimiter, seconds: float) -> None:
        self.files = files
        self.places = places
        self._seconds = seconds
        self._building: dict[Path, _Build] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._too_large: dict[Path, tuple[float, str]] = {}

    @property
    def waiting(self) -> int:
        """How many wait for a build."""
        return sum(build.waiters for build in self._building.values())

    @asynccontextmanager
    async def opened(
        self, repository: Path, archive: Archive, file: Path, asker: Asker
    ) -> AsyncIterator[BinaryIO]:
        """The archive, which is to be at `file`, for the length of the block.

        Raises `NotFoundError`, `GitError`, `TooLargeError`, `TooBusy`, `Unavailable` where the disk fails, and
        ConnectionResetError once the asker has left.
        """
        opened = await self._open(file)
        while opened is None:
            opened = await self._built(repository, archive, file, asker)
        with opened:
            yield opened

    async def _open(self, file: Path) -> BinaryIO | None:
        try:
            return await asyncio.to_thread(self.files.open, file)
        except OSError as problem:
            raise Unavailable("the store of archives") from problem

    async def _built(self, repository: Path, archive: Archive, file: Path, asker: Asker) -> BinaryIO | None:
        """None where it has to be tried again: the places of others are no reason to refuse this one."""
        build = self._building.get(file)
        others = build is not None
        if build is None:
            self._check_size(file)
            build = self._begin(repository, archive, file, asker)
        build.waiters += 1
        try:
            await _unless_left(build.task, asker)
            return await self._open(file)
        except TooBusy:
            if others:
                return None
            raise
        finally:
            build.waiters -= 1
            if not build.waiters:
                self._end(build, file)

    def _begin(self, repository: Path, archive: Archive, file: Path, asker: Asker) -> _Build:
        growing = GrowingFile(self.files, file)
        task = asyncio.create_task(self._write(repository, archive, file, growing, asker.keys))
        build = self._building[file] = _Build(growing, task)
        task.add_done_callback(lambda _: self._forget(build, file))
        return build

    def _forget(self, build: _Build, file: Path) -> None:
        """Nobody waits for it from now on who has not done so before."""
        if self._building.get(file) is build:
            del self._building[file]

    def _end(self, build: _Build, file: Path) -> None:
        """Nobody waits any more: stops git, if it still runs, and lets go of the file."""
        self._forget(build, file)
        build.task.cancel()
        ending = asyncio.create_task(_close(build))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Ends all builds."""
        for file, build in list(self._building.items()):
            self._end(build, file)
        await asyncio.gather(*self._ending)

    async def forget(self) -> None:
        """Ends all builds; what was too large is tried again."""
        await self.close()
        self._too_large.clear()

    async def _write(
        self, repository: Path, archive: Archive, file: Path, growing: GrowingFile, keys: Sequence[Hashable]
    ) -> None:
        try:
            async with (
                self.places.place(*keys),
                trees.stream_archive(repository, archive, time_limit=self._seconds) as chunks,
            ):
                await _in_thread(growing.begin)
                async for chunk in chunks:
                    await _in_thread(growing.write, chunk)
                await _in_thread(growing.finish)
        except BaseException as problem:
            with suppress(OSError):  # what cannot be written cannot be written at the end either
                await _in_thread(growing.close)
            match problem:
                case OSError():
                    raise Unavailable("the store of archives") from problem
                case GitTimeoutError():
                    reason = f"The archive takes more than {self._seconds:g} seconds"
                    self._remember(file, reason)
                    raise TooLargeError(reason) from None
                case TooLargeError():
                    self._remember(file, str(problem))
            raise

    def _remember(self, file: Path, reason: str) -> None:
        """So that asking again and again costs nothing."""
        self._too_large[file] = asyncio.get_running_loop().time() + _REMEMBERED, reason
        while len(self._too_large) > _MOST_REMEMBERED:
            del self._too_large[next(iter(self._too_large))]

    def _check_size(self, file: Path) -> None:
        until, reason = self._too_large.get(file, (0.0, ""))
        if asyncio.get_running_loop().time() < until:
            raise TooLargeError(reason)
        self._too_large.pop(file, None)


ARCHIVES = web.AppKey("archives", ArchiveStore)


def setup(app: web.Application) -> None:
    settings = app[SETTINGS]
    bounds = Bounds(
        one=min(settings.archive_limit, settings.archive_cache_bytes),
        all=settings.archive_cache_bytes,
        disk_reserve=settings.disk_reserve,
    )
    files = ArchiveFiles(settings.data_dir / "archives", bounds)
    places = ConcurrencyLimiter(
        settings.archive_builds, settings.archive_builds_each, patience=settings.archive_wait
    )
    app[ARCHIVES] = ArchiveStore(files, places, settings.archive_timeout)

    async def shrink() -> None:
        await asyncio.to_thread(files.shrink)

    async def leftovers(_: web.Application) -> None:
        await shrink()

    async def end_builds(_: web.Application) -> None:
        await app[ARCHIVES].close()

    app.on_startup.append(leftovers)
    app.on_cleanup.append(end_builds)
    app[QUEUE].add_periodic("shrink_archives", "*/10 * * * *", shrink)


async def _unless_left(build: "asyncio.Task[None]", asker: Asker) -> None:
    """Raises what the build raises, and ConnectionResetError."""
    while not build.done():
        if asker.has_left():
            raise ConnectionResetError
        await asyncio.wait({build}, timeout=_LOOKS_EVERY)
    build.result()


async def _close(build: _Build) -> None:
    await asyncio.wait({build.task})
    if not build.task.cancelled():
        build.task.exception()
    await asyncio.to_thread(build.file.close)


async def _in_thread(work: Callable[..., None], *arguments: bytes) -> None:
    """Also who is cancelled waits for its end: a file is not closed while it is written to."""
    await ended(asyncio.ensure_future(asyncio.to_thread(work, *arguments)))
