"""The processes that `scripts/up` starts and ends."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from forgelet.local import processes
from forgelet.local.processes import CannotStart, Child, StartWait

from .conftest import come_true, of_process


def test_a_signal_waits_until_the_look_at_a_child_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler raises; in the middle of Popen.poll() that could keep `up` from ending."""
    child = Child("A child", ["sleep", "60"], log=tmp_path / "log")
    poll, looked = child.process.poll, []

    def interrupted() -> Any:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        looked.append(poll())
        return looked[-1]

    monkeypatch.setattr(child.process, "poll", interrupted)
    before = signal.signal(signal.SIGTERM, lambda *_: exit(1))
    try:
        with pytest.raises(SystemExit):
            child.has_ended()
        assert looked == [None]
    finally:
        signal.signal(signal.SIGTERM, before)
        monkeypatch.undo()
        child.stop()


def test_a_child_begins_with_nothing_of_ours(tmp_path: Path) -> None:
    """Python's own code between fork and exec can wait for ever for a lock that another thread has held."""
    ours, forks = os.getpid(), []
    os.register_at_fork(before=lambda: forks.append(1) if os.getpid() == ours else None)
    child = Child("A child", ["sleep", "60"], log=tmp_path / "log")
    try:
        assert forks == []
        come_true(lambda: of_process(child.process.pid, "cmdline") == "sleep\0" + "60\0")
        status = dict(
            line.split(":\t", 1)
            for line in of_process(child.process.pid, "status").splitlines()
            if ":\t" in line
        )
        # 32 and 33 are the C library's own: it has a child ignore them once a thread of ours was cancelled
        ignored = int(status["SigIgn"], 16) & ~(0b11 << (32 - 1))
        assert ignored == 1 << (signal.SIGHUP - 1)
        assert (int(status["SigBlk"], 16), int(status["NSsid"])) == (0, child.process.pid)
    finally:
        child.stop()


def test_a_program_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    child = Child("A child", ["/nowhere/program"], log=tmp_path / "log")
    come_true(child.has_ended)
    assert child.account_of_end() == (
        f"exit status 127: No such file or directory: /nowhere/program (log: {tmp_path}/log)"
    )


def test_a_start_that_waits_says_for_what_each_ten_seconds_and_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, lines = [100.0], list[str]()
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    wait = StartWait(25.0, lines.append)
    for now[0] in (100.0, 109.9, 110.0, 110.1, 120.2):
        wait.check("PostgreSQL", tmp_path)
    now[0] = 125.1
    with pytest.raises(
        CannotStart, match=r"^PostgreSQL was not ready after 25 s \(logs: .*\); --start-timeout waits"
    ):
        wait.check("PostgreSQL", tmp_path)
    assert lines == [f"Waiting for PostgreSQL, {waited} s of at most 25 s ..." for waited in (10, 20)]
