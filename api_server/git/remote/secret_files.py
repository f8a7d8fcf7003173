"""Short-lived folders with the secrets of one git child, readable by this user alone."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "forgelet-secrets-"


@contextmanager
def secret_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder of mode 700 below `parent` (default: the temporary folder), removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_secret(path: Path, text: str, mode: int = 0o600) -> Path:
    """A new file that nobody else can read, not even for a moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
    return path


def remove_leftovers(parent: Path | None, *, older_than: float) -> None:
    """Removes what killed processes have left below `parent`: folders older than so many seconds.

    The file system dates them, whose clock need not be the application's: so a new folder tells what time it is.
    """
    with secret_folder(parent) as new:
        before = new.stat().st_mtime - older_than
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(FileNotFoundError):  # another process was done with it
            status = folder.lstat()
            if status.st_uid == os.getuid() and status.st_mtime < before:
                shutil.rmtree(folder, ignore_errors=True)
