"""Small disks of their own (tmpfs, as root), so that they can be filled."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

MIB = 2**20
API_SIZE = 1024 * MIB
EDGE_SIZE = 96 * MIB
POSTGRES_SIZE = 640 * MIB
#: What the API server leaves free of its disk, and the edge takes of its own.
RESERVE = 4 * MIB
EDGE_BYTES = 48 * MIB
#: Larger ones the edge keeps on disk alone.
EDGE_MEMORY_OBJECT_BYTES = MIB // 4
#: Names the file that fills a disk.
FILLER = "filler"


def can_mount() -> bool:
    return os.geteuid() == 0


@contextlib.contextmanager
def mounted(folder: Path, size: int, *, like: Path | None = None) -> Iterator[None]:
    """A disk of so many bytes at `folder`, with owner and mode of `like`; nothing where we are not root."""
    if not can_mount():
        yield
        return
    status = (like or folder).stat()
    options = f"size={size},mode={status.st_mode & 0o7777:o},uid={status.st_uid},gid={status.st_gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "forgelet-faults", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """Nothing more fits on the disk of `folder`. Only for disks of our own."""
    if not folder.is_mount():
        raise RuntimeError(f"{folder} is no disk of its own.")
    filler = folder / FILLER
    try:
        fill(filler)
        yield
    finally:
        filler.unlink(missing_ok=True)


def fill(filler: Path) -> None:
    """Takes what is free now; what others free meanwhile can be taken by another call."""
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for piece in (MIB, 4096, 1):
            with contextlib.suppress(OSError):
                while shutil.disk_usage(filler.parent).free and file.write(bytes(piece)):
                    pass
