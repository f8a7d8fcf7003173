"""Detection of a running backup: until it ends, no file is removed that the backup may still refer to.

A backup holds flock(2) on a file beside the repositories, so a backup that is killed blocks nobody. A task
that removes files first deletes the rows that name them and then asks whether a backup is running. If none
is, a backup that begins later takes its snapshot after the rows were deleted and does not refer to the files.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from api_server.state.errors import Unavailable
from common.config_errors import ConfigError

#: A file in the data directory while a restore fills it. A directory with this file is neither a usable
#: instance nor a new one.
UNFINISHED_RESTORE = "unfinished-restore"
RESTORE_AGAIN = "if nothing restores any more, delete what is in that folder and restore again"
_NAME = "backup"
#: Tasks that ask whether a backup is running hold the lock for microseconds.
_TIMEOUT_SECONDS = 2.0
_PAUSE_SECONDS = 0.01


@contextlib.contextmanager
def backing_up(repositories: Path) -> Iterator[None]:
    """Mark a backup of the instance with this `repositories` folder as running for the duration of the block.

    Raise `ConfigError` if another backup is running, and OSError.
    """
    descriptor = os.open(repositories / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(descriptor)
        yield
    finally:
        os.close(descriptor)


def is_under_way(repositories: Path) -> bool:
    """Return whether a backup is running or was running a moment ago. The call blocks briefly."""
    try:
        descriptor = os.open(repositories / _NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def not_during(repositories: Path) -> None:
    """Raise `Unavailable` while a backup is running. A task that removes files calls this; the queue then
    runs the task again a little later."""
    if is_under_way(repositories):
        raise Unavailable("what a backup reads that is under way")


def _take(descriptor: int) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ConfigError(
                    "Another backup of this instance is under way: wait until it has ended"
                ) from None
            time.sleep(_PAUSE_SECONDS)
        else:
            return
