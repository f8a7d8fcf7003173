"""Folders of tests: the place of temporary ones, and the files of a folder in which a server works meanwhile."""

import fcntl
import multiprocessing.util
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

#: A folder in memory on Linux.
SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "fgl-tests-"
#: Free bytes that a whole run needs for its files in memory.
_ROOM = 4 * 2**30


def files_below(folder: Path) -> list[Path]:
    """Return every file. Files that vanish meanwhile are left out, and a folder that does not exist has none."""
    return [Path(place, name) for place, _, names in os.walk(folder) for name in names]


def has_room(folder: Path = SHARED_MEMORY, room: int = _ROOM) -> bool:
    """Return whether the folder is in memory, has room for this many bytes, and allows programs to run."""
    try:
        mounts = Path("/proc/self/mounts").read_text()
        memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        disk = os.statvfs(folder)
    except OSError:  # not Linux
        return False
    available = int(memory["MemAvailable"].split()[0]) * 1024
    is_memory = f" {folder} tmpfs " in mounts and not disk.f_flag & os.ST_NOEXEC
    return is_memory and min(available, disk.f_bavail * disk.f_frsize) >= room


def move_temporary_files(place: Path = SHARED_MEMORY) -> Callable[[], None]:
    """Create a folder in `place` for temporary files of this process and of processes that it starts. Return a
    function that removes it. Remove folders of killed runs."""
    for folder in place.glob(f"{_PREFIX}*"):
        _remove(folder)
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=place))
    made.chmod(0o711)  # PostgreSQL may run as another account
    lock = os.open(made, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    # Other runs may see it only now that it is locked.
    folder = made.rename(place / made.name.removeprefix("."))
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)

    def remove() -> None:
        multiprocessing.util._run_finalizers()  # otherwise it misses its folder in this one at the end
        os.close(lock)
        _remove(folder)

    return remove


def _remove(folder: Path) -> None:
    """Remove the folder unless a run has locked it."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except OSError:  # it belongs to another account, or was removed meanwhile
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(lock)
