"""Snapshots of the whole state of the server, restoring them, and moving its clock."""

import asyncio
import contextlib
import datetime
import errno
import inspect
import itertools
import os
import shutil
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import structlog
from aiohttp import web

from api_server.audit.chain import HEAD_KEPT
from api_server.ci.jobs.handlers import JOBS_LIMIT
from api_server.ci.pipelines import planning
from api_server.code.housekeeping import UNPACKED
from api_server.code.quotas import QUOTAS
from api_server.code.refs import UNSETTLED
from api_server.git.repositories import REPOSITORIES
from api_server.operations.figures import FIGURES
from api_server.operations.watch import WATCH
from api_server.outbound.edges import EDGES
from api_server.outbound.mail import OUTBOX, Folder
from api_server.pages import account, mail_links, sign_in
from api_server.services import Key, Services
from api_server.state.errors import Unavailable
from api_server.static_objects import access
from api_server.static_objects.archive_builds import ARCHIVES
from api_server.status_checks.dispatcher import DISPATCHER
from api_server.testing import queries, tables
from api_server.testing.clock import MOVABLE_CLOCK
from api_server.testing.quiet import quiet, settled
from api_server.testing.steering import refused
from api_server.testing.tables import Tables
from api_server.web.rate_limits import THROTTLE, WINDOW
from common.concurrency import end, ended
from common.config_errors import ConfigError

#: The attributes in the file system by which an unchanged file is recognized.
Marks = tuple[int, ...]


@attrs.frozen
class Entry:
    """A folder, a symbolic link (`target`), or a file, whose content is the stored one with the number
    `content`."""

    mode: int
    target: str | None = None
    content: int | None = None

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


#: The contents of a folder: entries by path below it, parents before children. None if there is no such
#: folder.
Content = Mapping[str, Entry] | None


class Tree:
    """One folder. Contents of files are stored in `store`, and folders that are removed are moved to
    `discarded`, if that is on the same file system. All methods block; one call at a time."""

    def __init__(self, root: Path, store: Path, discarded: Path) -> None:
        self.root = root
        self._store = store
        self._discarded = discarded
        #: The attributes of files whose present content is stored.
        self._stored: dict[str, tuple[Marks, int]] = {}
        self._count = 0

    def take(self) -> Content:
        """Return the present contents. Nobody may be writing there."""
        if not self.root.is_dir():
            return None
        return {path: self._entry(path, status) for path, status in self._walk("")}

    def bring_back(self, content: Content) -> None:
        """Restore the contents. Nobody may be writing there."""
        if content is None:
            if self.root.exists():
                self._discard(self.root)
            self._stored.clear()
            return
        self.root.mkdir(parents=True, exist_ok=True)
        present: dict[str, os.stat_result] = {}
        for path, status in self._walk("", within=content):
            if path in content and self._is(content[path], path, status):
                present[path] = status
            else:
                self._discard(self.root / path)
        for path, entry in content.items():
            if path not in present:
                self._make(path, entry)
            elif _is_folder(entry) and present[path].st_mode != entry.mode:
                (self.root / path).chmod(stat.S_IMODE(entry.mode))
        self._stored = {path: self._stored[path] for path, entry in content.items() if entry.is_file}

    def drop_others(self, contents: Iterable[Content]) -> None:
        """Delete all stored files except those of these contents and of the present one."""
        used = {entry.content for content in contents for entry in (content or {}).values()}
        used.update(content for _, content in self._stored.values())
        for file in self._store.iterdir():
            if int(file.name) not in used:
                file.unlink()

    def _walk(self, below: str, within: Content = None) -> Iterator[tuple[str, os.stat_result]]:
        """Yield all entries below a folder with their attributes; with `within`, leave out the contents of
        folders that it does not have."""
        with os.scandir(self.root / below) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
        for entry in ordered:
            path, status = f"{below}{entry.name}", entry.stat(follow_symlinks=False)
            yield path, status
            if stat.S_ISDIR(status.st_mode) and (within is None or _is_folder(within.get(path))):
                yield from self._walk(f"{path}/", within)

    def _entry(self, path: str, status: os.stat_result) -> Entry:
        if stat.S_ISLNK(status.st_mode):
            return Entry(status.st_mode, target=str((self.root / path).readlink()))
        if not stat.S_ISREG(status.st_mode):
            return Entry(status.st_mode)
        stored = self._stored.get(path)
        if stored is None or stored[0] != _marks(status):
            self._count += 1
            shutil.copy2(self.root / path, self._store / str(self._count))
            stored = self._stored[path] = (_marks(status), self._count)
        return Entry(status.st_mode, content=stored[1])

    def _is(self, entry: Entry, path: str, status: os.stat_result) -> bool:
        """Return whether the existing file is already this entry; the permissions of folders are set
        afterwards."""
        if stat.S_IFMT(entry.mode) != stat.S_IFMT(status.st_mode):
            return False
        if entry.is_file:
            return self._stored.get(path) == (_marks(status), entry.content)
        return entry.target is None or str((self.root / path).readlink()) == entry.target

    def _make(self, path: str, entry: Entry) -> None:
        target = self.root / path
        if entry.target is not None:
            target.symlink_to(entry.target)
        elif entry.content is None:
            target.mkdir()
            target.chmod(stat.S_IMODE(entry.mode))
        else:
            shutil.copy2(self._store / str(entry.content), target)
            self._stored[path] = (_marks(target.lstat()), entry.content)

    def _discard(self, path: Path) -> None:
        if not path.is_dir() or path.is_symlink():
            path.unlink()
            return
        self._count += 1
        try:
            path.rename(self._discarded / f"{self.root.name}-{self._count}")
        except OSError as problem:
            if problem.errno != errno.EXDEV:
                raise
            shutil.rmtree(path)


def _is_folder(entry: Entry | None) -> bool:
    return entry is not None and stat.S_ISDIR(entry.mode)


def _marks(status: os.stat_result) -> Marks:
    return status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


Forget = Callable[[Any], Awaitable[None] | None]

#: The counters of requests by caller.
LIMITERS: Mapping[Key[Any], Forget] = {
    key: lambda limiter: limiter.forget()
    for key in (
        JOBS_LIMIT,
        THROTTLE,
        planning.LIMITS,
        access.LIMITS,
        sign_in.BY_ADDRESS,
        sign_in.BY_LOGIN,
        sign_in.UNKNOWN,
        account.BY_USER,
        mail_links.BY_ADDRESS,
    )
}
#: All state in memory that outlives a request, by its key in the application. It does not include caches that
#: `note_change` invalidates (`LookupCache`), nor counters of running work.
REMEMBERED: Mapping[Key[Any], Forget] = {
    **LIMITERS,
    QUOTAS: lambda quotas: quotas.forget(),
    UNSETTLED: lambda unsettled: unsettled.clear(),
    UNPACKED: lambda unpacked: unpacked.clear(),
    ARCHIVES: lambda archives: archives.forget(),
    DISPATCHER: lambda dispatcher: dispatcher.drop(),
    FIGURES: lambda figures: figures.forget(),
    WATCH: lambda watch: watch.forget(),
    HEAD_KEPT: lambda kept: kept.forget(),
}


async def forget_memory(services: Services) -> None:
    """Forget all data in memory that belongs to the previous state."""
    services.database.note_change()
    for key, forget_it in REMEMBERED.items():
        result = forget_it(services[key])
        if inspect.isawaitable(result):
            await result


def forget_who_asked(services: Services) -> None:
    """Reset all rate limits."""
    for key, forget_it in LIMITERS.items():
        forget_it(services[key])


log = structlog.get_logger(__name__)

START = "start"
#: Maximum number of snapshots besides that of the start, and maximum bytes of the files of all of them.
MOST_SNAPSHOTS, MOST_BYTES = 100, 1024**3


@attrs.frozen
class Snapshot:
    """The state at a moment; `ahead` is how far the clock had been moved."""

    id: str
    taken_at: datetime.datetime
    ahead: datetime.timedelta
    tables: tables.Content
    trees: list[Content]


class Snapshots:
    """The snapshots of an application, and restoring them. Concurrent calls take turns."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.tables = Tables(services.settings.database_url)
        self._folder = services.settings.data_dir / "testing"
        self._discarded = self._folder / "discarded"
        self._trees: list[Tree] = []
        self._numbers = itertools.count(1)
        self._snapshots: dict[str, Snapshot] = {}
        self._lock = asyncio.Lock()
        self._cleaning: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Take the first snapshot, and keep snapshots usable for the duration of the block."""
        with contextlib.closing(self.tables):
            await self.tables.open()
            await self.tables.run(queries.MAKE_CLOCK)
            await asyncio.to_thread(self._make_folders)
            self._snapshots[START] = await self._create(START)
            try:
                yield
            finally:
                if self._cleaning is not None:
                    await end(self._cleaning)
                await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    @contextlib.asynccontextmanager
    async def alone(self, *, cut: bool) -> AsyncIterator[None]:
        """Stop all other activity, and other callers of this method, for the duration of the block. Raise the
        errors of `quiet`."""
        async with self._lock, quiet(self._services, cut=cut):
            yield

    def is_clean(self) -> bool:
        """Return whether the clean-up after the last reset has ended."""
        return self._cleaning is None or self._cleaning.done()

    async def settle(self) -> list[str]:
        """Wait until no work is due or running; return the names of unfinished work."""
        async with self._lock:
            return await settled(self._services)

    @property
    def all(self) -> list[Snapshot]:
        """All snapshots, the oldest first."""
        return list(self._snapshots.values())

    async def take(self, *, as_start: bool = False) -> Snapshot:
        """Take a snapshot of the present state; `as_start` makes it that for `reset`. Raise 409 if there are
        too many or too large snapshots, or if some activity does not end."""
        if not as_start and len(self._snapshots) > MOST_SNAPSHOTS:
            raise refused(
                f"There are {MOST_SNAPSHOTS} snapshots already: delete some, or reuse them.", web.HTTPConflict
            )
        async with self.alone(cut=False):
            snapshot = await self._create(START if as_start else str(next(self._numbers)))
            self._snapshots[snapshot.id] = snapshot
            if not as_start and await asyncio.to_thread(self._bytes) > MOST_BYTES:
                await self._forget(snapshot.id)
                raise refused(
                    f"The files of all snapshots would be more than {MOST_BYTES} bytes.", web.HTTPConflict
                )
            await self._drop_unused()
            return snapshot

    async def bring_back(self, id_: str, *, also: Iterable[Callable[[], object]] = ()) -> None:
        """Restore a snapshot; call `also` at the same moment. Raise 404 for an unknown id, 503 if an edge
        cannot be reset."""
        self._find(id_)
        async with self.alone(cut=True):
            snapshot = self._find(id_)
            problems, _, _ = await asyncio.gather(
                self._services[EDGES].set_back(snapshot.ahead.total_seconds()),
                self._bring_back_tables(snapshot),
                ended(asyncio.ensure_future(asyncio.to_thread(self._bring_back_trees, snapshot))),
            )
            self._services[MOVABLE_CLOCK].ahead = snapshot.ahead
            await forget_memory(self._services)
            for call in also:
                call()
        if self.is_clean():
            self._cleaning = asyncio.create_task(self._clean_up())
        if problems:
            raise refused(
                f"An edge may still serve the former state: {'; '.join(problems)}", web.HTTPServiceUnavailable
            )

    async def delete(self, id_: str) -> None:
        """Delete a snapshot. Raise 400 and 404."""
        if id_ == START:
            raise refused("The snapshot of the start cannot be deleted, because a reset restores it.")
        async with self._lock:
            self._find(id_)
            await self._forget(id_)

    def _find(self, id_: str) -> Snapshot:
        if id_ not in self._snapshots:
            raise refused(
                "There is no snapshot with this id; GET /-/testing/snapshots lists those there are.",
                web.HTTPNotFound,
            )
        return self._snapshots[id_]

    async def _create(self, id_: str) -> Snapshot:
        tables = await self.tables.take()
        contents = await asyncio.to_thread(lambda: [tree.take() for tree in self._trees])
        return Snapshot(id_, self._services.clock(), self._services[MOVABLE_CLOCK].ahead, tables, contents)

    async def _bring_back_tables(self, snapshot: Snapshot) -> None:
        await self.tables.bring_back(snapshot.tables)
        if snapshot.ahead != self._services[MOVABLE_CLOCK].ahead:
            await self.tables.run(queries.MOVE_CLOCK, ahead=snapshot.ahead)

    def _bring_back_trees(self, snapshot: Snapshot) -> None:
        for tree, content in zip(self._trees, snapshot.trees, strict=True):
            tree.bring_back(content)

    async def _forget(self, id_: str) -> None:
        del self._snapshots[id_]
        await self._drop_unused()

    async def _drop_unused(self) -> None:
        """Delete copies and files that no remaining snapshot needs."""
        copies = {
            copy
            for snapshot in self._snapshots.values()
            for copy in snapshot.tables.copies.values()
            if copy is not None
        }
        await self.tables.drop_others(copies)
        for position, tree in enumerate(self._trees):
            contents = [snapshot.trees[position] for snapshot in self._snapshots.values()]
            await asyncio.to_thread(tree.drop_others, contents)

    async def _clean_up(self) -> None:
        """Clean up what the reset has left behind, which would slow down later ones."""
        try:
            await asyncio.to_thread(_empty, self._discarded)
            await self.tables.clean_up()
        except (OSError, Unavailable) as problem:
            log.warning("the remains of a reset could not be removed", problem=str(problem))

    def _make_folders(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)  # files of an earlier process
        self._discarded.mkdir(parents=True)
        for root in roots(self._services):
            store = self._folder / f"kept-{root.name}"
            store.mkdir()
            self._trees.append(Tree(root, store, self._discarded))

    def _bytes(self) -> int:
        return sum(file.stat().st_size for file in self._folder.glob("kept-*/*"))


def roots(services: Services) -> list[Path]:
    """Return the folders in which the application stores everything that requests change. Raise
    `ConfigError`."""
    objects, outbox = services.objects.folder, services[OUTBOX]
    if objects is None:
        raise ConfigError("A server for tests stores its objects in files: leave out object_store_url")
    mail = [outbox.path] if isinstance(outbox, Folder) else []
    return [services[REPOSITORIES].root, objects, services[ARCHIVES].files.root, *mail]


def _empty(folder: Path) -> None:
    for child in folder.iterdir():
        shutil.rmtree(child, ignore_errors=True)


SNAPSHOTS = Key[Snapshots]("snapshots")


#: How far the clock may be ahead of the machine's.
FURTHEST_AHEAD = datetime.timedelta(days=365 * 100)


async def move_clock(services: Services, step: datetime.timedelta) -> list[str]:
    """Move the clock forward, do the work that is due by then, and return the names of unfinished work. Raise
    400, 409 and 503."""
    if step < datetime.timedelta():
        raise refused("The clock moves forward only; POST /-/testing/reset sets it back.")
    clock = services[MOVABLE_CLOCK]
    if clock.ahead + step > FURTHEST_AHEAD:
        raise refused(f"The clock may be ahead by {FURTHEST_AHEAD.days} days at most.")
    async with services[SNAPSHOTS].alone(cut=False):
        since = services.clock()
        ahead = clock.ahead + step
        if problems := await services[EDGES].set_clock(ahead.total_seconds()):
            raise refused(
                f"The clock of an edge cannot be moved: {'; '.join(problems)}", web.HTTPServiceUnavailable
            )
        clock.ahead = ahead
        await services[SNAPSHOTS].tables.run(queries.MOVE_CLOCK, ahead=ahead)
        if step.total_seconds() >= WINDOW:  # their windows run by a clock that cannot be moved
            forget_who_asked(services)
        services.database.note_change()
        services[FIGURES].forget()
    if services.settings.work:
        await services.queue.defer_periodic(since, services.clock())
    return await services[SNAPSHOTS].settle()
