"""What the disk has left: files stop growing before it is full, since the database may be on it too."""

import shutil
from pathlib import Path


def leaves_free(folder: Path, more: int, reserve: int) -> bool:
    """Whether `more` bytes fit below `folder` with `reserve` bytes left (0: it is not looked at)."""
    return not reserve or shutil.disk_usage(folder).free - more >= reserve
