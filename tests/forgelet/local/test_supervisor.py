"""What `scripts/up` does while it runs: it keeps its processes up, hands signals on, and ends when it is told to."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psycopg2

from .conftest import Up, come_true, gone
from .test_up import environment, starts

StartUp = Callable[..., Up]


def killed(up: Up, role: str) -> str:
    """The line about the death of the stand-in, which runs again afterwards."""
    before = up.child(role)
    os.kill(before, signal.SIGKILL)
    line = up.wait_for("started again")
    come_true(lambda: up.child(role) != before)
    return line


def postgres_of(up: Up) -> int:
    return int((up.data / "postgres/data/postmaster.pid").read_text().split()[0])


def test_what_is_killed_is_started_again_until_it_is_too_often(start_up: StartUp, place: Path) -> None:
    """One line for each end, with the last words of that process itself. The others run on, and PostgreSQL is where it
    was: also where its socket could not be in the data directory, whose path is too long."""
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

    before, children = postgres_of(up), up.children()
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
    """Though its end is a hangup too; what is in flight may be finished."""
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
