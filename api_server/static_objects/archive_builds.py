"""Building archives, each once however many wait for it, as files that all processes of one data directory share.

Together the files take no more room than they may. Locks of the file system (flock) say who needs a file: whoever
builds one holds it exclusively, whoever sends one shares it, and only what nobody holds is removed. Locks end with
their process, so a crash leaves nothing that looks needed.
"""

import asyncio
import fcntl
import os
import uuid
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import attrs
import structlog

from api_server.git import trees
from api_server.git.errors import GitTimeoutError, NotFoundError
from api_server.git.trees import Archive
from api_server.services import Key, Services
from api_server.state.disk import leaves_free
from api_server.state.errors import Unavailable
from common.concurrency import ConcurrencyLimiter, TooBusy, ended

log = structlog.get_logger(__name__)

#: A growing file takes at least so many bytes at a time, twice as many each time, up to the second number.
_FIRST_STEP, _LAST_STEP = 2**20, 64 * 2**20


class TooLargeError(Exception):
    """An archive that is not built to its end, as it would be too large or take too long; the text says so."""


class NoRoomError(TooBusy):
    """All that could be removed has been, and there is not enough room."""


@attrs.frozen
class Bounds:
    """Bytes of one archive, of all together, and of the disk that stay free (0: it is not looked at)."""

    archive: int
    all: int
    disk_reserve: int = 0
    #: However small they are: whoever makes room looks at each.
    files: int = 10_000


class ArchiveFiles:
    """Archives at `<root>/<project>/<name>`; those that are being built have names that begin with a dot."""

    def __init__(self, root: Path, bounds: Bounds) -> None:
        self.root = root
        self._bounds = bounds

    def path(self, project_id: int, name: str) -> Path:
        return self.root / str(project_id) / name

    def open(self, file: Path) -> BinaryIO | None:
        """Return the archive, which is there until it is closed; None if there is none."""
        with suppress(FileNotFoundError):
            opened = file.open("rb")
            fcntl.flock(opened, fcntl.LOCK_SH)
            if os.fstat(opened.fileno()).st_nlink:
                os.utime(opened.fileno())
                return opened
            opened.close()  # removed a moment before it was ours
        return None

    def remove_project(self, project_id: int) -> None:
        """Also what is being sent or built: what of it is open can be read to its end."""
        folder = self.root / str(project_id)
        if folder.exists():
            with self.locked():
                for file in folder.iterdir():
                    file.unlink(missing_ok=True)
                folder.rmdir()

    def shrink(self) -> None:
        """Remove what a crash has left unfinished, and what was not asked for the longest, down to the limits."""
        if not self.root.exists():
            return
        with self.locked():
            for file, _ in self._all_files():
                if file.name.startswith("."):
                    _remove(file)
            self._make_room(0)

    def reserve(self, growing: BinaryIO, size: int, reserved: int) -> int:
        """Make room for a file that has `reserved` bytes and needs `size`; how many it has then, `size` or more.

        Raise `TooLargeError` and `NoRoomError`.
        """
        if size > self._bounds.archive:
            raise TooLargeError(f"The archive has more than {self._bounds.archive} bytes")
        step = min(max(_FIRST_STEP, reserved), _LAST_STEP)
        with self.locked():
            for target in (min(max(size, reserved + step), self._bounds.archive), size):
                if self._make_room(target - reserved):
                    growing.truncate(target)
                    return target
        log.warning("no room for an archive", bytes=size)
        raise NoRoomError

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else makes room, begins or finishes a file meanwhile, in whatever process."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _make_room(self, more: int) -> bool:
        """Return whether there is room for so many bytes, after as much as necessary has been removed."""
        files = sorted(self._all_files(), key=lambda entry: entry[1].st_mtime)
        count, total = len(files), sum(stat.st_size for _, stat in files)
        for file, stat in files:
            if self._fits(count, total + more, more):
                return True
            if _remove(file):
                count, total = count - 1, total - stat.st_size
        return self._fits(count, total + more, more)

    def _fits(self, count: int, total: int, more: int) -> bool:
        return (
            count <= self._bounds.files
            and total <= self._bounds.all
            and leaves_free(self.root, more, self._bounds.disk_reserve)
        )

    def _all_files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Every file; who holds none of the locks may finish or remove one during the look."""
        for file in self.root.glob("*/*"):
            with suppress(FileNotFoundError):
                yield file, file.stat()


def _remove(file: Path) -> bool:
    """False for a file that somebody builds or sends."""
    with suppress(FileNotFoundError), file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        file.unlink()
    return True


class GrowingFile:
    """An archive that is being built. Its calls block, and come one after the other."""

    def __init__(self, files: ArchiveFiles, destination: Path) -> None:
        self._files = files
        self._destination = destination
        self._path = destination.with_name(f".{destination.name}.{uuid.uuid4().hex}")
        self._opened = ExitStack()
        self._file: BinaryIO
        self._size = self._reserved = 0

    def begin(self) -> None:
        with self._files.locked():
            self._path.parent.mkdir(exist_ok=True)
            self._file = self._opened.enter_context(self._path.open("xb"))
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def write(self, data: bytes) -> None:
        """Raise `TooLargeError` and `NoRoomError` before the bytes take any room."""
        if self._size + len(data) > self._reserved:
            self._reserved = self._files.reserve(self._file, self._size + len(data), self._reserved)
        self._file.write(data)
        self._size += len(data)

    def finish(self) -> None:
        """The archive is at its destination, and stays there until `close`. Raise `NotFoundError` where its project
        has been removed."""
        self._file.truncate(self._size)
        self._file.flush()
        os.fsync(self._file.fileno())
        with self._files.locked():
            try:
                self._path.replace(self._destination)
            except FileNotFoundError:
                raise NotFoundError(self._destination.name) from None
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def close(self) -> None:
        """Remove it if it has not been finished."""
        self._path.unlink(missing_ok=True)
        self._opened.close()


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

    def __init__(self, files: ArchiveFiles, slots: ConcurrencyLimiter, seconds: float) -> None:
        self.files = files
        self.slots = slots
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
        """Yield the archive, which is to be at `file`, for the length of the block.

        Raise `NotFoundError`, `GitError`, `TooLargeError`, `TooBusy`, `Unavailable` where the disk fails, and
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
        """None where it has to be tried again: the slots of others are no reason to refuse this one."""
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
        """End all builds."""
        for file, build in list(self._building.items()):
            self._end(build, file)
        await asyncio.gather(*self._ending)

    async def forget(self) -> None:
        """End all builds; what was too large is tried again."""
        await self.close()
        self._too_large.clear()

    async def _write(
        self, repository: Path, archive: Archive, file: Path, growing: GrowingFile, keys: Sequence[Hashable]
    ) -> None:
        try:
            async with (
                self.slots.slot(*keys),
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


ARCHIVES = Key[ArchiveStore]("archives")


def setup(services: Services) -> None:
    settings = services.settings
    bounds = Bounds(
        archive=min(settings.archive_limit, settings.archive_cache_bytes),
        all=settings.archive_cache_bytes,
        disk_reserve=settings.disk_reserve,
    )
    files = ArchiveFiles(settings.data_dir / "archives", bounds)
    slots = ConcurrencyLimiter(
        settings.archive_builds, settings.archive_builds_each, timeout=settings.archive_wait
    )
    services[ARCHIVES] = ArchiveStore(files, slots, settings.archive_timeout)

    async def shrink() -> None:
        await asyncio.to_thread(files.shrink)

    async def building(_: Services) -> AsyncIterator[None]:
        await shrink()  # what another process has left
        yield
        await services[ARCHIVES].close()

    services.while_running(building)
    services.queue.add_periodic("shrink_archives", "*/10 * * * *", shrink)


async def _unless_left(build: "asyncio.Task[None]", asker: Asker) -> None:
    """Raise what the build raises, and ConnectionResetError."""
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
