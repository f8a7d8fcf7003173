"""What the bench starts beside git, it ends."""

import contextlib
import shutil
import time
from pathlib import Path

import pytest

from scripts.bench.rows.git import AT_ONCE, fcgiwrap


def _behind(socket: Path) -> int:
    """How many processes there are whose command names it."""
    count = 0
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            count += f"unix:{socket}".encode() in command.read_bytes()
    return count


@pytest.mark.skipif(shutil.which("fcgiwrap") is None, reason="fcgiwrap is not installed")
def test_fcgiwrap_ends_with_the_processes_that_it_has_made(tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    with fcgiwrap(socket):
        _wait_for(AT_ONCE + 1, socket)
    _wait_for(0, socket)


def _wait_for(count: int, socket: Path) -> None:
    deadline = time.monotonic() + 20
    while (found := _behind(socket)) != count:
        assert time.monotonic() < deadline, f"{found} and not {count}"
        time.sleep(0.01)
