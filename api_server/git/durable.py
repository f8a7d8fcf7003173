"""What git and libgit2 leave to the file system's own time: that files are found again under their new names.

Both sync contents (`isolation.CONFIGURATION`, `enable_fsync_gitdir`) and then rename, which a power cut undoes unless
the folder is synced as well. libgit2 does so, but for new and deleted names of branches' folders and for HEAD; git
never does.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def sync_refs(repository: Path, refs: Iterable[str]) -> None:
    """Returns when moved refs (`HEAD`, `refs/heads/main`) are on the disk as they are now. Blocks."""
    _sync({folder for ref in refs for folder in _folders_up_to(repository, ref)} | {repository})


def sync_objects(repository: Path, folders: Iterable[str]) -> None:
    """Likewise the objects in these folders of `objects`: `pack`, `0a`. Blocks."""
    objects = repository / "objects"
    _sync({objects, *(objects / name for name in folders)})


def sync_tree(folder: Path) -> None:
    """Returns when all files and folders of a new one are on the disk. Blocks."""
    for parent, _, names in os.walk(folder):
        _sync([*(Path(parent, name) for name in names), Path(parent)])


def sync_folder(folder: Path) -> None:
    """Likewise the names in one folder. Blocks."""
    _sync([folder])


def _folders_up_to(repository: Path, ref: str) -> Iterator[Path]:
    """A deleted ref may have taken folders with it."""
    folder = (repository / ref).parent
    while folder != repository and repository in folder.parents:
        yield folder
        folder = folder.parent


def _sync(places: Iterable[Path]) -> None:
    for place in places:
        try:
            descriptor = os.open(place, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
