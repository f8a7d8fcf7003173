"""The disk: files stop growing before it is full, since the database may be on it too; and what is on it, for good."""

import os
import shutil
from pathlib import Path


def leaves_free(folder: Path, more: int, reserve: int) -> bool:
    """Whether `more` bytes fit below `folder` with `reserve` bytes left (0: it is not looked at)."""
    return not reserve or shutil.disk_usage(folder).free - more >= reserve


def make_folder(folder: Path) -> None:
    """Makes a folder of mode 700 and those above it, where they are missing; they are there after a power cut too."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for new in reversed(missing):
        sync(new.parent)


def sync_folders(file: Path, root: Path) -> None:
    """Waits until a file's name is on the disk, and the names of all folders between it and `root`.

    Any of them may be new, made for another file whose writer has not come so far yet.
    """
    folder = file.parent
    while True:
        sync(folder)
        if folder == root:
            return
        folder = folder.parent


def sync(path: Path) -> None:
    """Waits until a file's bytes, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
