"""Upkeep of repositories: removing leftovers of killed gits and servers, and packing into fewer files.

Nothing has to wait for packing: git and libgit2 find their objects wherever they are packed meanwhile, and the objects
of a push under way are in a folder of their own. Objects to which no ref leads are kept for two weeks (git's own time)
in a separate pack, and longer while reflogs of branches mention them: nothing that a request or a push is about to use
is removed. Packing that is killed leaves temporary files and locks, which `maintain` removes.
"""

import asyncio
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import attrs
import structlog

from api_server.git.at_work import alone, note_writing, written_mark
from api_server.git.processes import run
from api_server.git.ref_moves import move_refs, remove_locks
from api_server.git.repositories import UNDER_WAY
from api_server.state import backups

log = structlog.stdlib.get_logger(__name__)

#: Age in seconds from which temporary objects are leftovers. This process, and others like it, complete theirs long
#: before.
_OLD_SECONDS = 3600.0

_LOCKS_OF_PACKING = (
    "objects/info/commit-graph.lock",
    "objects/info/commit-graphs/commit-graph-chain.lock",
    "objects/pack/multi-pack-index.lock",
    "objects/maintenance.lock",
    "gc.pid",
)


@attrs.frozen(kw_only=True)
class Thresholds:
    """The numbers from which on a repository is packed: loose objects, their bytes, packs, loose refs."""

    loose_objects: int = 100
    loose_bytes: int = 64 * 2**20
    packs: int = 20
    loose_refs: int = 100


@attrs.frozen
class RepositoryState:
    """The state of a repository. `is_quiet` says that nobody was at work. `since` is when it was first written to
    after the last check that found it quiet, in seconds since 1970."""

    is_quiet: bool
    wants_packing: bool
    since: float


def written(root: Path) -> list[Path]:
    """Return the repositories that have been written to since they were last looked after, longest ago first. Blocks:
    call it in a thread."""
    marks = []
    for mark in (root / "written").glob("*.git"):
        try:
            marks.append((mark.stat().st_mtime, mark.name))
        except FileNotFoundError:
            continue
    return [_repository(root, name) for _, name in sorted(marks)]


def _repository(root: Path, name: str) -> Path:
    return root / f"{int(name.removesuffix('.git')) % 256:02x}" / name


def maintain(repository: Path, thresholds: Thresholds, now: float) -> RepositoryState:
    """Remove what no running process can need, and remove the repository's mark if nobody is at work. Blocks: call it
    in a thread. `now` is in seconds since 1970.

    This removes locks of refs while nobody moves any, objects of pushes while nobody transfers any, and temporary
    files of packing while nobody packs.
    """
    mark = written_mark(repository)
    try:
        since = mark.stat().st_mtime
    except FileNotFoundError:
        since = now
    if not repository.is_dir():  # it has been deleted
        mark.unlink(missing_ok=True)
        return RepositoryState(is_quiet=True, wants_packing=False, since=since)
    is_quiet = _clean_up(repository, mark, now)
    return RepositoryState(is_quiet, wants_packing(repository, thresholds), since)


def _clean_up(repository: Path, mark: Path, now: float) -> bool:
    """Clean up, and return whether nobody was at work. Large folders are only renamed while others have to wait, and
    deleted later."""
    set_aside: list[Path] = []
    with alone(repository, "packing") as packing:
        if packing is not None:
            clean_up_packing(repository, now)
        with alone(repository, "moving") as moving, alone(repository, "transferring") as transferring:
            if moving is not None:
                remove_locks(repository)
            if transferring is not None:
                _release_packs(repository)
                set_aside = _set_aside(repository)
            is_quiet = None not in (packing, moving, transferring)
            if is_quiet:
                mark.unlink(missing_ok=True)
    for folder in set_aside:
        log.warning("removed the objects of a push that was killed", repository=repository.name)
        shutil.rmtree(folder, ignore_errors=True)
    return is_quiet


def _release_packs(repository: Path) -> None:
    """Remove git's marks on packs of pushes, which protect them from being repacked until refs lead to them."""
    for file in (repository / "objects/pack").glob("*.keep"):
        if file.read_bytes().startswith(b"receive-pack "):
            file.unlink()


def _set_aside(repository: Path) -> list[Path]:
    aside = repository.parent.parent / "unfinished"
    aside.mkdir(exist_ok=True)
    folders = list((repository / "objects").glob(f"{UNDER_WAY}*"))
    return [folder.rename(aside / uuid.uuid4().hex) for folder in folders]


def clean_up_packing(repository: Path, now: float) -> None:
    """Remove leftovers of killed packing. The caller holds the lock for "packing" alone. Blocks: call it in a
    thread."""
    for name in _LOCKS_OF_PACKING:
        (repository / name).unlink(missing_ok=True)
    objects = repository / "objects"
    for pattern in ("pack/tmp_*", "pack/.tmp-*", "info/commit-graphs/tmp_*", "info/tmp_*"):
        for file in objects.glob(pattern):
            file.unlink(missing_ok=True)
    old = now - _OLD_SECONDS
    for pattern in ("tmp_object_*", "tmp_obj_*", "??/tmp_obj_*"):
        for file in objects.glob(pattern):
            if file.lstat().st_mtime < old:
                file.unlink(missing_ok=True)


def wants_packing(repository: Path, thresholds: Thresholds) -> bool:
    """Return whether a threshold is reached, reading no more than necessary. Blocks: call it in a thread."""
    return (
        _many_packs(repository, thresholds)
        or _many_loose_objects(repository, thresholds)
        or _many_loose_refs(repository, thresholds)
    )


def _many_packs(repository: Path, thresholds: Thresholds) -> bool:
    return sum(1 for _ in (repository / "objects/pack").glob("*.pack")) >= thresholds.packs


def _many_loose_objects(repository: Path, thresholds: Thresholds) -> bool:
    count = size = 0
    for folder in (repository / "objects").glob("??"):
        sizes = _sizes(folder)
        count += len(sizes)
        size += sum(sizes)
        if count >= thresholds.loose_objects or size >= thresholds.loose_bytes:
            return True
    return False


def _sizes(folder: Path) -> list[int]:
    """Return the sizes of the folder's files, without those that are removed meanwhile."""
    try:
        return [entry.stat().st_size for entry in list(os.scandir(folder))]
    except FileNotFoundError:
        return []


def _many_loose_refs(repository: Path, thresholds: Thresholds) -> bool:
    count = 0
    for _, _, names in os.walk(repository / "refs"):
        count += len(names)
        if count >= thresholds.loose_refs:
            return True
    return False


_DAY_SECONDS = 86_400.0
#: A file whose age tells when the whole repository was last packed.
_STAMP = "at-work/packed-whole"
_EXPIRY = "2.weeks.ago"


@attrs.frozen(kw_only=True)
class Style:
    """How a repository is packed. From `large` objects on, it gets bitmaps and a commit-graph. The whole repository is
    packed anew if the last time is so many `days` ago, and, if its objects have `whole` bytes or less, also if it has
    doubled. Otherwise only what is small is packed together, and large packs stay. `time_limit` is in seconds, for
    each git."""

    large: int = 1_000
    whole: int = 256 * 2**20
    days: float = 7.0
    time_limit: float = 7200.0


async def pack(repository: Path, style: Style, now: float) -> bool:
    """Pack refs and objects. Return False if somebody else is just doing so, or if a backup may still need what would
    be removed. `now` is in seconds since 1970. Raise `GitError` and the errors of `move_refs`."""
    with alone(repository, "packing") as descriptor:
        if descriptor is None or backups.is_under_way(repository.parent.parent):
            return False
        start = time.monotonic()
        note_writing(repository)
        await asyncio.to_thread(clean_up_packing, repository, now)
        await _pack_refs(repository, style, descriptor)
        before = await _Count.of(repository)
        is_whole = _is_old(repository, style, now) or before.has_doubled(style)
        await _repack(repository, style, descriptor, before, is_whole=is_whole)
        log.info(
            "packed a repository",
            repository=repository.name,
            loose_objects=before.loose,
            packs=before.packs,
            whole=is_whole,
            seconds=round(time.monotonic() - start, 1),
        )
    return True


async def _pack_refs(repository: Path, style: Style, packing: int) -> None:
    """Pack loose refs. This locks them, but does not move any."""

    async def attempt(moving: int) -> None:
        await run(
            ["pack-refs", "--all", "--prune"],
            repository=repository,
            time_limit=style.time_limit,
            pass_fds=(packing, moving),
            background=True,
        )

    await move_refs(repository, attempt)


async def _repack(
    repository: Path, style: Style, descriptor: int, before: "_Count", *, is_whole: bool
) -> None:
    async def git(*arguments: str) -> None:
        await run(
            arguments,
            repository=repository,
            time_limit=style.time_limit,
            pass_fds=(descriptor,),
            background=True,
        )

    is_large = before.objects >= style.large
    if is_whole:
        await _expire_reflogs(repository, style, descriptor)
        bitmap = "--write-bitmap-index" if is_large else "--no-write-bitmap-index"
        await git(*_REPACK, "--cruft", f"--cruft-expiration={_EXPIRY}", bitmap)
        await git("prune", f"--expire={_EXPIRY}")  # for loose objects, which repacking ignores
        await asyncio.to_thread((repository / _STAMP).touch)
    else:
        await git(*_REPACK, "--geometric=2", "--no-write-bitmap-index")
    # An old commit-graph may name objects that no longer exist.
    if is_large or (repository / "objects/info/commit-graph").exists():
        await git("commit-graph", "write", "--reachable", "--no-progress")


_REPACK = ("repack", "-d", "-l", "-n", "-q")


async def _expire_reflogs(repository: Path, style: Style, packing: int) -> None:
    """Expire reflog entries by git's own times. This locks each branch for a moment."""

    async def attempt(moving: int) -> None:
        await run(
            ["reflog", "expire", "--all", "--expire=90.days.ago", "--expire-unreachable=30.days.ago"],
            repository=repository,
            time_limit=style.time_limit,
            pass_fds=(packing, moving),
            background=True,
        )

    await move_refs(repository, attempt)


def _is_old(repository: Path, style: Style, now: float) -> bool:
    """Return whether the last time that the whole repository was packed is long ago, or never was."""
    try:
        return (repository / _STAMP).stat().st_mtime < now - style.days * _DAY_SECONDS
    except FileNotFoundError:
        return True


@attrs.frozen
class _Count:
    """The numbers of git-count-objects(1), and the size of the largest pack. Sizes are in bytes."""

    loose: int
    packs: int
    objects: int
    size: int
    largest: int

    @classmethod
    async def of(cls, repository: Path) -> "_Count":
        printed = (await run(["count-objects", "-v"], repository=repository)).stdout.decode()
        counts = {name: int(value) for name, value in _pairs(printed.splitlines())}
        size = (counts["size"] + counts["size-pack"]) * 1024
        largest = max(
            (pack.stat().st_size for pack in (repository / "objects/pack").glob("*.pack")), default=0
        )
        return cls(counts["count"], counts["packs"], counts["count"] + counts["in-pack"], size, largest)

    def has_doubled(self, style: Style) -> bool:
        """Return whether most of the repository is outside of its largest pack. Because of this condition, all bytes
        that are ever packed as a whole are at most twice the final size, however many pushes bring them."""
        return self.size <= style.whole and self.largest * 2 < self.size


def _pairs(lines: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [line.partition(": ") for line in lines]
    return [(name, value) for name, _, value in pairs if value.isdecimal()]
