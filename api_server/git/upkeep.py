"""What killed gits and servers have left in a repository, and whether it wants to be packed."""

import os
import shutil
import uuid
from pathlib import Path

import attrs
import structlog

from api_server.git.at_work import alone, written_mark
from api_server.git.ref_locks import remove_locks
from api_server.git.repositories import UNDER_WAY

log = structlog.stdlib.get_logger(__name__)

#: Objects that this process, or one like it, is writing itself are complete long before.
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
    """From how many on a repository is packed: loose objects, their bytes, packs, loose refs."""

    loose_objects: int = 100
    loose_bytes: int = 64 * 2**20
    packs: int = 20
    loose_refs: int = 100


@attrs.frozen
class Found:
    """What a look at a repository found. `is_quiet`: nobody was at work. `since`: seconds since 1970 when it was
    first written after the last look that was in quiet."""

    is_quiet: bool
    wants_packing: bool
    since: float


def written(root: Path) -> list[Path]:
    """The repositories that have been written since somebody looked after them, longest ago first. Blocks."""
    found = []
    for mark in (root / "written").glob("*.git"):
        try:
            found.append((mark.stat().st_mtime, mark.name))
        except FileNotFoundError:
            continue
    return [_repository(root, name) for _, name in sorted(found)]


def _repository(root: Path, name: str) -> Path:
    return root / f"{int(name.removesuffix('.git')) % 256:02x}" / name


def look_after(repository: Path, thresholds: Thresholds, now: float) -> Found:
    """Removes what nobody living can want, and takes the mark off it where nobody is at work. Blocks; `now` is in
    seconds since 1970.

    That is: locks of refs while nobody moves any, objects of pushes while nobody transfers any, whatever is temporary
    in packing while nobody packs.
    """
    mark = written_mark(repository)
    try:
        since = mark.stat().st_mtime
    except FileNotFoundError:
        since = now
    if not repository.is_dir():  # it has been deleted
        mark.unlink(missing_ok=True)
        return Found(is_quiet=True, wants_packing=False, since=since)
    is_quiet = _clean_up(repository, mark, now)
    return Found(is_quiet, wants_packing(repository, thresholds), since)


def _clean_up(repository: Path, mark: Path, now: float) -> bool:
    """Whether nobody was at work. What is large is only renamed while others have to wait."""
    gone: list[Path] = []
    with alone(repository, "packing") as packing:
        if packing is not None:
            clean_up_packing(repository, now)
        with alone(repository, "moving") as moving, alone(repository, "transferring") as transferring:
            if moving is not None:
                remove_locks(repository)
            if transferring is not None:
                _release_packs(repository)
                gone = _set_aside(repository)
            is_quiet = None not in (packing, moving, transferring)
            if is_quiet:
                mark.unlink(missing_ok=True)
    for folder in gone:
        log.warning("removed the objects of a push that was killed", repository=repository.name)
        shutil.rmtree(folder, ignore_errors=True)
    return is_quiet


def _release_packs(repository: Path) -> None:
    """git marks the pack of a push as not to be packed anew until refs lead to it."""
    for file in (repository / "objects/pack").glob("*.keep"):
        if file.read_bytes().startswith(b"receive-pack "):
            file.unlink()


def _set_aside(repository: Path) -> list[Path]:
    aside = repository.parent.parent / "unfinished"
    aside.mkdir(exist_ok=True)
    found = list((repository / "objects").glob(f"{UNDER_WAY}*"))
    return [folder.rename(aside / uuid.uuid4().hex) for folder in found]


def clean_up_packing(repository: Path, now: float) -> None:
    """What killed housekeeping has left; to be called by whoever alone packs. Blocks."""
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
    """Looks no further than it must. Blocks."""
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
    """Of the files in it, as far as they do not vanish meanwhile."""
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
