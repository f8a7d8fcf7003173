"""Where a server for tests keeps its data: in memory where there is room, and for as long as it runs."""

import contextlib
import os
import re
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from forgelet.local.cluster_folders import temporary_root
from forgelet.local.data_directory import DataDirectory
from forgelet.local.processes import CannotStart, end_processes_in

SHARED_MEMORY = Path("/dev/shm")
#: Containers often have 64 MiB there, which one PostgreSQL fills.
ROOM = 512 * 2**20
_PREFIX = "forgelet-testing-"
_NAME = re.compile(rf"{_PREFIX}(\d+)-[0-9a-f]{{16}}")
#: Seconds after which whoever has made a folder holds it, or has ended: its number may be another process's by now.
_UNHELD = 60.0
#: Seconds that what a killed one has left may take to end.
_PATIENCE = 2.0


@contextlib.contextmanager
def passing_data() -> Iterator[DataDirectory]:
    """A data directory that is not there yet, and is removed in the end; those of killed processes are at once. Of a
    start that fails the logs stay until the next one, since the sentence about it names them."""
    usual = Path(temporary_root())
    for folder in {SHARED_MEMORY, usual}:
        _remove_leftovers(folder)
    place = SHARED_MEMORY if _has_room(SHARED_MEMORY) else usual
    data = DataDirectory(place / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}")
    names_logs = False
    try:
        yield data
    except CannotStart as problem:
        names_logs = str(data.path) in str(problem)
        raise
    finally:
        for path in data.path.glob("*") if names_logs else [data.path]:
            if path.name != "logs":
                shutil.rmtree(path, ignore_errors=True)


def _has_room(folder: Path) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK) and disk.f_bavail * disk.f_frsize >= ROOM


def _remove_leftovers(folder: Path) -> None:
    """What belongs to this account and to no process that lives. Two at once may do it."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{_PREFIX}*"):
            name = _NAME.fullmatch(path.name)
            if name and _is_left(path, int(name[1])):
                parts = [path / "api", path / "edge", path / "postgres/data"]
                end_processes_in(*parts, stop_signal=signal.SIGKILL, patience=_PATIENCE)
                shutil.rmtree(path, ignore_errors=True)


def _is_left(path: Path, pid: int) -> bool:
    with contextlib.suppress(OSError):
        told = path.stat()
        is_new = Path(f"/proc/{pid}").exists() and time.time() - told.st_mtime < _UNHELD
        if told.st_uid == os.geteuid() and not is_new:
            return not DataDirectory(path).is_held()  # whose process may be one of another container
    return False
