"""Packing a repository: fewer files for all that is read, and gone is what nobody can reach any more.

Nothing has to wait for it: git and libgit2 find what they read wherever it is packed meanwhile, and what is being
pushed waits in a folder of its own. What no ref leads to is kept for two weeks (git's own time) in a pack of its own,
and longer while the reflogs of branches know it: nothing that a request or a push is about to use is removed. Killed,
it leaves temporary files and locks, which `upkeep` knows.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
import structlog

from api_server.git.at_work import alone, note_writing
from api_server.git.processes import run
from api_server.git.ref_locks import move_refs
from api_server.git.upkeep import clean_up_packing
from api_server.state import backups

log = structlog.stdlib.get_logger(__name__)

_DAY_SECONDS = 86_400.0
#: Says by its age when all of the repository was last packed anew.
_STAMP = "at-work/packed-whole"
_EXPIRY = "2.weeks.ago"


@attrs.frozen(kw_only=True)
class Style:
    """From `large` objects on a repository gets bitmaps and a commit-graph. It is packed anew as a whole when the last
    time is so many `days` ago, and while its objects have `whole` bytes or less also when it has doubled; else what is
    small is put together, beside the large packs that it has. `time_limit` is in seconds, for each git."""

    large: int = 1_000
    whole: int = 256 * 2**20
    days: float = 7.0
    time_limit: float = 7200.0


async def pack(repository: Path, style: Style, now: float) -> bool:
    """Packs refs and objects; False where somebody else is just doing so, or a backup may still want what would go.
    `now` is in seconds since 1970. Raises `GitError` and as `move_refs`."""
    with alone(repository, "packing") as descriptor:
        if descriptor is None or backups.is_under_way(repository.parent.parent):
            return False
        begun = time.monotonic()
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
            seconds=round(time.monotonic() - begun, 1),
        )
    return True


async def _pack_refs(repository: Path, style: Style, packing: int) -> None:
    """Moves none, but locks them."""

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
        await git("prune", f"--expire={_EXPIRY}")  # of loose objects, which no pack takes along
        await asyncio.to_thread((repository / _STAMP).touch)
    else:
        await git(*_REPACK, "--geometric=2", "--no-write-bitmap-index")
    if is_large or (repository / "objects/info/commit-graph").exists():  # which may tell of what is gone
        await git("commit-graph", "write", "--reachable", "--no-progress")


_REPACK = ("repack", "-d", "-l", "-n", "-q")


async def _expire_reflogs(repository: Path, style: Style, packing: int) -> None:
    """By git's own times; it locks each branch for a moment."""

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
    """Whether the last time that it was packed as a whole is long ago, or never was."""
    try:
        return (repository / _STAMP).stat().st_mtime < now - style.days * _DAY_SECONDS
    except FileNotFoundError:
        return True


@attrs.frozen
class _Count:
    """What git-count-objects(1) says, with the largest pack; sizes in bytes."""

    loose: int
    packs: int
    objects: int
    size: int
    largest: int

    @classmethod
    async def of(cls, repository: Path) -> "_Count":
        printed = (await run(["count-objects", "-v"], repository=repository)).stdout.decode()
        told = {name: int(value) for name, value in _pairs(printed.splitlines())}
        size = (told["size"] + told["size-pack"]) * 1024
        largest = max(
            (pack.stat().st_size for pack in (repository / "objects/pack").glob("*.pack")), default=0
        )
        return cls(told["count"], told["packs"], told["count"] + told["in-pack"], size, largest)

    def has_doubled(self, style: Style) -> bool:
        """Whether most of it is not in its largest pack: so all that is ever packed as a whole is twice what there is
        at the end, however many pushes bring it."""
        return self.size <= style.whole and self.largest * 2 < self.size


def _pairs(lines: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [line.partition(": ") for line in lines]
    return [(name, value) for name, _, value in pairs if value.isdecimal()]
