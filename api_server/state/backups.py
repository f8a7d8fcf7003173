"""A backup that is under way: until it ends, nothing is removed that its moment still names.

Whoever backs up holds flock(2) on a file beside the repositories, so that a backup that is killed holds nobody back.
Whoever removes files that rows have named asks, after those rows are gone, whether a backup is under way. Where none
is, one that begins later takes its moment later too, and does not name what is removed.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from api_server.state.errors import Unavailable
from common.config_errors import ConfigError

#: In the data directory while a restore fills it; what is there then is no instance, nor the beginning of a new one.
UNFINISHED_RESTORE = "unfinished-restore"
RESTORE_AGAIN = "if nothing restores any more, delete what is in that folder and restore again"
_NAME = "backup"
#: Those who ask hold it for microseconds.
_TIMEOUT_SECONDS = 2.0
_PAUSE_SECONDS = 0.01


@contextlib.contextmanager
def backing_up(repositories: Path) -> Iterator[None]:
    """A backup of what belongs to the folder `repositories` is under way for the length of the block; one at a time.

    Raises `ConfigError` where another one is, and OSError.
    """
    descriptor = os.open(repositories / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(descriptor)
        yield
    finally:
        os.close(descriptor)


def is_under_way(repositories: Path) -> bool:
    """Whether a backup is, or was a moment ago. Blocks, but briefly."""
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
    """For a task that removes what rows have named: raises `Unavailable` while a backup is under way, which has the
    queue run it again a little later."""
    if is_under_way(repositories):
        raise Unavailable("what a backup reads that is under way")


def _take(descriptor: int) -> None:
    given_up = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > given_up:
                raise ConfigError(
                    "Another backup of this instance is under way: wait until it has ended"
                ) from None
            time.sleep(_PAUSE_SECONDS)
        else:
            return
