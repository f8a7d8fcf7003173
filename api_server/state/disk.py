"""The disk: free space that is kept, since the database may be on the same disk, and files that survive a
power cut."""

import os
import shutil
from pathlib import Path


def leaves_free(folder: Path, size: int, reserve: int) -> bool:
    """Return whether `size` bytes fit below `folder` so that `reserve` bytes stay free. A reserve of 0 turns
    the check off."""
    return not reserve or shutil.disk_usage(folder).free - size >= reserve


def make_folder(folder: Path) -> None:
    """Create a folder of mode 700 and its missing parents, so that they survive a power cut."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for new in reversed(missing):
        sync(new.parent)


def sync_folders(file: Path, root: Path) -> None:
    """Wait until the names of a file and of all folders between it and `root` are on the disk.

    Any of these folders may be new: another writer may have created it and not yet synchronized it.
    """
    folder = file.parent
    while True:
        sync(folder)
        if folder == root:
            return
        folder = folder.parent


def sync(path: Path) -> None:
    """Wait until a file's bytes, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
