"""What an earlier PostgreSQL has left on its data: it is ended, or waited for, and its lock files are removed.

PostgreSQL goes by the numbers of processes in its lock files, and numbers come again: in a container at every start.
What cannot be mistaken is a lock (flock) on a file beside the data. A server and all its processes inherit it, so it
ends with the last of them, in whichever container they run.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from forgelet.local.processes import CannotStart, end_processes_in

#: Where sockets are whose path would be too long beside the data: below /tmp, in folders with names that begin so.
SOCKET_FOLDER_PREFIX = "forgelet-pg-"
#: Seconds that an earlier server may take to end.
PATIENCE = 10.0


@contextlib.contextmanager
def cleared(data: Path, sockets: Path, patience: float = PATIENCE) -> Iterator[int]:
    """For as long as the block lasts nobody else starts a server on `data`. Gives the open file that a server has to
    inherit. Raises `CannotStart` where an earlier one works on that cannot be ended from here."""
    # Never through a link: the folder may belong to another account than ours.
    lock = os.open(data.with_name("server.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        pid_file = data / "postmaster.pid"
        if pid_file.exists() or not _is_ours(lock):
            end_processes_in(data, stop_signal=signal.SIGINT, patience=patience)
        deadline = time.monotonic() + patience
        while not _is_ours(lock):
            if time.monotonic() > deadline:
                raise CannotStart(
                    f"A PostgreSQL that cannot be seen from here uses {data}, perhaps in another container: stop that"
                )
            time.sleep(0.05)
        _remove_files_of_ended(pid_file, sockets)
        yield lock
    finally:
        os.close(lock)


def _is_ours(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_files_of_ended(pid_file: Path, sockets: Path) -> None:
    for lock in sockets.glob(".s.PGSQL.*.lock"):
        lock.unlink(missing_ok=True)
    if not pid_file.exists():
        return
    lines = pid_file.read_text().splitlines()
    if (
        len(lines) > 4
        and lines[4].startswith(f"/tmp/{SOCKET_FOLDER_PREFIX}")
        and "/" not in lines[4][5:]
        and lines[4] != str(sockets)
    ):
        shutil.rmtree(lines[4], ignore_errors=True)
    pid_file.unlink(missing_ok=True)
