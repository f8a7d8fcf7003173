"""Short-lived folders with the secrets of one git child, readable by this user alone.

Whoever uses one holds a lock on it (flock), which ends with its process, however that ends: so leftovers can be told
from what is needed.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "forgelet-secrets-"
#: Between making a folder and holding it lies no more than that.
_SECONDS_TO_LOCK = 10


@contextmanager
def secret_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder of mode 700 below `parent` (default: the temporary folder), removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def write_secret(path: Path, text: str, mode: int = 0o600) -> Path:
    """A new file that nobody else can read, not even for a moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
    return path


def remove_leftovers(parent: Path | None) -> None:
    """Removes what killed processes have left below `parent`: folders that nobody holds.

    One that is a few seconds old may be about to be held. The file system dates them, whose clock need not be the
    application's: so a new folder tells what time it is.
    """
    with secret_folder(parent) as new:
        before = new.stat().st_mtime - _SECONDS_TO_LOCK
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(FileNotFoundError):  # another process was done with it
            status = folder.lstat()
            if status.st_uid == os.getuid() and status.st_mtime < before and not _is_held(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_held(folder: Path) -> bool:
    handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
