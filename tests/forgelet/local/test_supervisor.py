"""`scripts/up` while it runs: it restarts its processes, passes signals on, and ends on request."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from forgelet.local import processes
from forgelet.local.processes import CannotStart, Child, StartWait
from tests.forgelet.local.conftest import Up, come_true, gone, of_process
from tests.forgelet.local.test_up import environment, starts

StartUp = Callable[..., Up]


def killed(up: Up, role: str) -> str:
    """Kill the stand-in; return the line about it, once it runs again."""
    before = up.child(role)
    os.kill(before, signal.SIGKILL)
    line = up.wait_for("started again")
    come_true(lambda: up.child(role) != before)
    return line


def test_what_is_killed_is_started_again_until_it_is_too_often(start_up: StartUp, place: Path) -> None:
    """There is one line for each end, with the last log line of that process. The others run on, and PostgreSQL keeps
    its place, even if its socket could not be in the data directory because of its long path."""
    deep = place / ("long" * 20)
    deep.mkdir(mode=0o711)
    up = start_up(data=deep / "data")
    up.wait_until_ready()
    logs = up.data.resolve() / "logs"
    url, edge, server = environment(up, "api")["DATABASE_URL"], up.child("edge"), up.child("api")
    assert killed(up, "edge") == (
        f"The storage edge ended with SIGKILL: edge number {edge} speaks (log: {logs}/edge.log);"
        " it is started again in 0.5 s.\n"
    )
    assert up.child("api") == server

    up.process.send_signal(signal.SIGHUP)
    assert up.wait_for("SIGHUP") == "SIGHUP was handed on to the API server and the storage edge.\n"
    come_true(lambda: all((up.data / role / "hangup").exists() for role in ("api", "edge")))

    before, children = (int((up.data / "postgres/data/postmaster.pid").read_text().split()[0])), up.children()
    os.kill(before, signal.SIGKILL)
    line = up.wait_for("started again")
    assert line.startswith("PostgreSQL ended with SIGKILL: ")
    assert f"(log: {logs}/postgres.log); it is started again in 0.5 s." in line
    come_true(lambda: _answers(url))
    assert starts(up) == 1, "the server runs on"
    assert set(children) - set(up.children()) == {before}

    assert "it is started again in 0.5 s." in killed(up, "api")
    again = up.child("api")
    assert killed(up, "api") == (
        f"The API server ended with SIGKILL: api number {again} speaks (log: {logs}/api.log);"
        " it is started again in 1 s.\n"
    )
    children, last = up.children(), up.child("api")
    written = (logs / "api.log").read_text()
    assert [f"number {number} speaks" in written for number in (server, again, last)] == [True] * 3
    os.kill(last, signal.SIGKILL)
    assert up.outcome() == (
        1,
        f"Error: The API server ended with SIGKILL: api number {last} speaks (log: {logs}/api.log),"
        " for the third time within a minute\n",
    )
    assert gone(children)


def _answers(url: str) -> bool:
    try:
        psycopg2.connect(url).close()
    except psycopg2.OperationalError:
        return False
    return True


def test_a_second_signal_ends_everything_at_once(start_up: StartUp) -> None:
    up = start_up(STAND_IN_EDGE="hangs at the end", FORGELET_EDGE_SHUTDOWN_TIMEOUT="3600")
    up.wait_until_ready()
    children = up.children()
    up.process.send_signal(signal.SIGINT)
    up.wait_for("Stopping ...")
    up.process.send_signal(signal.SIGINT)
    assert up.outcome() == (1, "")
    assert up.shown.endswith("Stopped at once; what was in flight was cut off.\n")
    assert gone(children, seconds=0.5)


def test_a_terminal_that_is_gone_ends_everything(start_up: StartUp) -> None:
    """Even then, requests under way may be finished."""
    ours, theirs = os.openpty()
    up = start_up(stdout=theirs, STAND_IN_API="takes its time at the end")
    os.close(theirs)
    shown = b""
    while b"Ctrl-C stops" not in shown:
        shown += os.read(ours, 65536)
    children = up.children()
    os.close(ours)
    up.process.send_signal(signal.SIGHUP)
    assert up.process.wait(30) == 0
    assert (up.data / "api/finished").exists()
    assert gone(children)


def test_settings_of_the_servers_are_looked_at_before_anything_is_started(start_up: StartUp) -> None:
    up = start_up(FORGELET_EDGE_SEND_TIMEOUT="0")
    assert up.outcome() == (
        2,
        "Error: FORGELET_EDGE_SEND_TIMEOUT has to be a number from 0.1 to 86400\n",
    )
    assert not (up.data / "postgres").exists()


def test_a_signal_waits_until_the_look_at_a_child_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler raises an exception, which could keep `up` from ending in the middle of Popen.poll()."""
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
    """Python code between fork and exec could wait for ever for a lock that another thread held."""
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
        # 32 and 33 are the C library's own: a child ignores them once a thread of ours was cancelled
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


StartTesting = Callable[..., Up]


def test_wrong_rules_are_told_before_anything_starts(start_testing: StartTesting, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text("- name: deploy\n  result: broken\n")
    up = start_testing(f"--runner={rules}")
    status, errors = up.outcome()
    assert (status, errors.count("\n")) == (2, 1)
    assert f"{rules}:2: result has to be success, failed or a reason to fail: " in errors
