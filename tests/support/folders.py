"""Folders of tests: where temporary ones are, and what is in one that a server works in at the same time."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

#: In memory on Linux.
SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "fgl-tests-"
#: Bytes that are free where a whole run has its files in memory.
_ROOM = 4 * 2**30


def files_below(folder: Path) -> list[Path]:
    """Every file; what vanishes during the look is passed over, and a folder that does not exist has none."""
    return [Path(place, name) for place, _, names in os.walk(folder) for name in names]


def has_room(folder: Path = SHARED_MEMORY, room: int = _ROOM) -> bool:
    """Whether it is in memory, so many bytes can be written there, and programs that are may be run."""
    try:
        mounts = Path("/proc/self/mounts").read_text()
        memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        disk = os.statvfs(folder)
    except OSError:  # no Linux
        return False
    available = int(memory["MemAvailable"].split()[0]) * 1024
    is_memory = f" {folder} tmpfs " in mounts and not disk.f_flag & os.ST_NOEXEC
    return is_memory and min(available, disk.f_bavail * disk.f_frsize) >= room


def move_temporary_files(place: Path = SHARED_MEMORY) -> Callable[[], None]:
    """Makes a folder in `place` the one for temporary files, here and in processes that are started from now on.
    Returns what removes it. Folders of runs that were killed are removed at once."""
    for folder in place.glob(f"{_PREFIX}*"):
        _remove(folder)
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=place))
    made.chmod(0o711)  # PostgreSQL may run as another account
    lock = os.open(made, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = made.rename(place / made.name.removeprefix("."))  # other runs may see it, now that it is locked
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)

    def remove() -> None:
        os.close(lock)
        _remove(folder)

    return remove


def _remove(folder: Path) -> None:
    """Unless a run holds it."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except OSError:  # another account's, or removed meanwhile
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(lock)
