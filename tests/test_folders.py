"""The place of a run's temporary files, and their removal."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import folders
from tests.support.checkout import CHECKOUT

MOVING = """
import sys, tempfile
from pathlib import Path
from tests.support.folders import move_temporary_files

remove = move_temporary_files(Path(sys.argv[1]))
Path(tempfile.mkdtemp(), "file").touch()
print(tempfile.gettempdir(), flush=True)
input()
remove()
"""


@contextlib.contextmanager
def moved(place: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """Run a process whose temporary files are in a folder of `place`, which it removes at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", MOVING, str(place)],
        env={"PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        with contextlib.suppress(BrokenPipeError):
            process.communicate("\n")


def test_temporary_files_go_with_their_run_or_with_the_next_one(tmp_path: Path) -> None:
    with moved(tmp_path) as (killed, left), moved(tmp_path) as (_, kept):
        assert sorted(tmp_path.iterdir()) == sorted([left, kept])
        killed.kill()
        killed.wait()
        with moved(tmp_path) as (_, new):
            assert sorted(tmp_path.iterdir()) == sorted([kept, new])
        assert list(tmp_path.iterdir()) == [kept]
    assert list(tmp_path.iterdir()) == []


def test_only_memory_with_room_in_which_programs_may_be_run_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not folders.has_room(Path("/proc"))
    assert not folders.has_room(Path("/nowhere"))
    assert not folders.has_room(room=2**60)
    memory = os.statvfs("/dev/shm")
    with_flag = SimpleNamespace(f_flag=memory.f_flag | os.ST_NOEXEC, f_bavail=2**40, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: with_flag)
    assert not folders.has_room(room=1)
    with_flag.f_flag &= ~os.ST_NOEXEC
    assert folders.has_room(room=1) == (" /dev/shm tmpfs " in Path("/proc/self/mounts").read_text())
