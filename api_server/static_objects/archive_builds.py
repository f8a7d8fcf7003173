"""Building of archives, once for all callers that wait for it, as files shared by all processes of a data directory.

The total size of the files is limited. Locks of the file system (flock) protect files in use: a builder holds an
exclusive lock, a sender a shared one, and only files without a lock are removed. Locks end with their process, so a
crash leaves no file that seems to be in use.
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

#: Minimum and maximum number of bytes that a growing file reserves at once; each step doubles the file.
_FIRST_STEP, _LAST_STEP = 2**20, 64 * 2**20


class TooLargeError(Exception):
    """The archive would be too large or take too long; the text says which."""


class NoRoomError(TooBusy):
    """There is not enough room, even after all unused files have been removed."""


@attrs.frozen
class Bounds:
    """Maximum number of bytes of one archive and of all together, and minimum free space of the disk (0: no check)."""

    archive: int
    all: int
    disk_reserve: int = 0
    #: Maximum number of files, because making room examines each of them.
    files: int = 10_000


class ArchiveFiles:
    """Archives at `<root>/<project>/<name>`. The names of unfinished ones begin with a dot."""

    def __init__(self, root: Path, bounds: Bounds) -> None:
        self.root = root
        self._bounds = bounds

    def path(self, project_id: int, name: str) -> Path:
        return self.root / str(project_id) / name

    def open(self, file: Path) -> BinaryIO | None:
        """Open the archive, which is not removed until it is closed. Return None if it does not exist."""
        with suppress(FileNotFoundError):
            opened = file.open("rb")
            fcntl.flock(opened, fcntl.LOCK_SH)
            if os.fstat(opened.fileno()).st_nlink:
                os.utime(opened.fileno())
                return opened
            opened.close()  # it was removed before this process had the lock
        return None

    def remove_project(self, project_id: int) -> None:
        """Remove all archives of a project, even those in use: open files can still be read to their end."""
        folder = self.root / str(project_id)
        if folder.exists():
            with self.locked():
                for file in folder.iterdir():
                    file.unlink(missing_ok=True)
                folder.rmdir()

    def shrink(self) -> None:
        """Remove unfinished files of crashed processes, and the least recently used archives beyond the limits."""
        if not self.root.exists():
            return
        with self.locked():
            for file, _ in self._all_files():
                if file.name.startswith("."):
                    _remove(file)
            self._free_space(0)

    def reserve(self, growing: BinaryIO, size: int, reserved: int) -> int:
        """Extend a file of `reserved` bytes to at least `size` bytes, and return its new number of bytes.

        Raise `TooLargeError` and `NoRoomError`.
        """
        if size > self._bounds.archive:
            raise TooLargeError(f"The archive has more than {self._bounds.archive} bytes")
        step = min(max(_FIRST_STEP, reserved), _LAST_STEP)
        with self.locked():
            for target in (min(max(size, reserved + step), self._bounds.archive), size):
                if self._free_space(target - reserved):
                    growing.truncate(target)
                    return target
        log.warning("no room for an archive", bytes=size)
        raise NoRoomError

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Prevent all others, in any process, from making room and from beginning or finishing a file for the duration
        of the block."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _free_space(self, more: int) -> bool:
        """Remove as many unused files as necessary for `more` bytes. Return whether there is enough room then."""
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
        """Yield every file with its status, except for files that disappear in the meantime."""
        for file in self.root.glob("*/*"):
            with suppress(FileNotFoundError):
                yield file, file.stat()


def _remove(file: Path) -> bool:
    """Remove the file. Return False if it is in use, that is, being built or sent."""
    with suppress(FileNotFoundError), file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        file.unlink()
    return True


class GrowingFile:
    """An unfinished archive. Its methods block and must be called one after the other."""

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
        """Append the bytes. Raise `TooLargeError` or `NoRoomError` before anything is written."""
        if self._size + len(data) > self._reserved:
            self._reserved = self._files.reserve(self._file, self._size + len(data), self._reserved)
        self._file.write(data)
        self._size += len(data)

    def finish(self) -> None:
        """Move the archive to its destination, where it is not removed until `close`. Raise `NotFoundError` if its
        project has been deleted."""
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
        """Close the file, and remove it if it is not finished."""
        self._path.unlink(missing_ok=True)
        self._opened.close()


#: Interval in seconds in which a waiting request checks that its client is still connected.
_LOOKS_EVERY = 0.5
#: Seconds for which too large archives are cached, and the maximum number of them.
_REMEMBERED, _MAX_REMEMBERED = 600, 1000


@attrs.frozen(kw_only=True)
class Waiter:
    """A client that waits for an archive: the keys of the limits for its build, and whether it has disconnected."""

    keys: Sequence[Hashable]
    has_disconnected: Callable[[], bool]


@attrs.define(eq=False)
class _Build:
    file: GrowingFile
    task: "asyncio.Task[None]"
    waiters: int = 0


class ArchiveStore:
    """Finished archives, and builds in progress."""

    def __init__(self, files: ArchiveFiles, slots: ConcurrencyLimiter, seconds: float) -> None:
        self.files = files
        self.slots = slots
        self._seconds = seconds
        self._building: dict[Path, _Build] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._too_large: dict[Path, tuple[float, str]] = {}

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a build."""
        return sum(build.waiters for build in self._building.values())

    @asynccontextmanager
    async def opened(
        self, repository: Path, archive: Archive, file: Path, waiter: Waiter
    ) -> AsyncIterator[BinaryIO]:
        """Yield the archive at `file` for the duration of the block, and build it first if it does not exist.

        Raise `NotFoundError`, `GitError`, `TooLargeError`, `TooBusy`, `Unavailable` if the disk fails, and
        ConnectionResetError if the client has disconnected.
        """
        opened = await self._open(file)
        while opened is None:
            opened = await self._built(repository, archive, file, waiter)
        with opened:
            yield opened

    async def _open(self, file: Path) -> BinaryIO | None:
        try:
            return await asyncio.to_thread(self.files.open, file)
        except OSError as problem:
            raise Unavailable("the store of archives") from problem

    async def _built(self, repository: Path, archive: Archive, file: Path, waiter: Waiter) -> BinaryIO | None:
        """Wait until the archive is built, and open it. Return None if the caller must try again.

        That is the case if a build that another client began was refused: this client's limits may allow one.
        """
        build = self._building.get(file)
        others = build is not None
        if build is None:
            self._check_size(file)
            build = self._begin(repository, archive, file, waiter)
        build.waiters += 1
        try:
            await _while_connected(build.task, waiter)
            return await self._open(file)
        except TooBusy:
            if others:
                return None
            raise
        finally:
            build.waiters -= 1
            if not build.waiters:
                self._end(build, file)

    def _begin(self, repository: Path, archive: Archive, file: Path, waiter: Waiter) -> _Build:
        growing = GrowingFile(self.files, file)
        task = asyncio.create_task(self._write(repository, archive, file, growing, waiter.keys))
        build = self._building[file] = _Build(growing, task)
        task.add_done_callback(lambda _: self._forget(build, file))
        return build

    def _forget(self, build: _Build, file: Path) -> None:
        """Make later requests begin another build."""
        if self._building.get(file) is build:
            del self._building[file]

    def _end(self, build: _Build, file: Path) -> None:
        """End a build for which nobody waits: stop git if it still runs, and release the file."""
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
        """End all builds, and clear the cache of too large archives."""
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
            with suppress(OSError):  # closing a file writes to it, which may fail again
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
        """Cache that the archive is too large, so that repeated requests do not build it again."""
        self._too_large[file] = asyncio.get_running_loop().time() + _REMEMBERED, reason
        while len(self._too_large) > _MAX_REMEMBERED:
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
        await shrink()  # removes the unfinished files of killed processes
        yield
        await services[ARCHIVES].close()

    services.while_running(building)
    services.queue.add_periodic("shrink_archives", "*/10 * * * *", shrink)


async def _while_connected(build: "asyncio.Task[None]", waiter: Waiter) -> None:
    """Wait for the build and raise its error. Raise ConnectionResetError if the client disconnects."""
    while not build.done():
        if waiter.has_disconnected():
            raise ConnectionResetError
        await asyncio.wait({build}, timeout=_LOOKS_EVERY)
    build.result()


async def _close(build: _Build) -> None:
    await asyncio.wait({build.task})
    if not build.task.cancelled():
        build.task.exception()
    await asyncio.to_thread(build.file.close)


async def _in_thread(work: Callable[..., None], *arguments: bytes) -> None:
    """Run `work` in a thread, and wait for its end even after a cancellation: a file must not be closed while it is
    written."""
    await ended(asyncio.ensure_future(asyncio.to_thread(work, *arguments)))
