"""`scripts/up` with stand-ins for the two processes: what it starts, keeps, says, and never leaves behind."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg2
import pytest
from click.testing import CliRunner

from forgelet.command_line import forgelet
from forgelet.instance import Instance
from forgelet.local.data_directory import DataDirectory
from forgelet.local.embedded_postgres import temporary_cluster

from .conftest import Up, free_ports, given, gone, of_process

StartUp = Callable[..., Up]


def joined(up: Up) -> dict[str, str]:
    settings: dict[str, str] = json.loads((up.data / "api/settings.json").read_text())
    return settings


def environment(up: Up, role: str) -> dict[str, str]:
    return given(up.data, role)


def starts(up: Up) -> int:
    """How often the API server has started on this database, by a row that each start adds."""
    connection = psycopg2.connect(environment(up, "api")["DATABASE_URL"])
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM starts")
        (count,) = cursor.fetchone()
    connection.close()
    return int(count)


def assert_one_sentence(up: Up, *words: str) -> None:
    status, errors = up.outcome()
    assert status == 2
    assert errors.startswith("Error: ")
    assert errors.count("\n") == 1
    for word in words:
        assert word in errors


def test_up_starts_everything_joins_it_and_a_signal_ends_it(start_up: StartUp) -> None:
    up = start_up(FORGELET_API_SHUTDOWN_TIMEOUT="300", FORGELET_EDGE_SHUTDOWN_TIMEOUT="300")
    shown = up.wait_until_ready()
    api, edge = (f"http://127.0.0.1:{port}" for port in up.ports)
    assert joined(up) == {
        "static_objects_external_storage_url": edge,
        "static_objects_external_storage_auth_token": environment(up, "edge")["STORAGE_TOKEN"],
    }
    assert environment(up, "api")["EDGE_URLS"] == edge
    assert environment(up, "edge")["ORIGIN"] == environment(up, "api")["EXTERNAL_URL"] == api
    assert environment(up, "api")["EDGE_PURGE_TOKEN"] == environment(up, "edge")["PURGE_TOKEN"]
    assert environment(up, "api")["ROOT_TOKEN"] in shown
    children = up.children()
    assert len(children) == 3

    second = start_up(data=up.data)
    assert_one_sentence(second, "Another forgelet uses")

    running = found(up).running
    assert running
    assert (running.pid, running.api_url, running.edge_url) == (up.process.pid, api, edge)

    up.process.send_signal(signal.SIGINT)
    assert up.outcome() == (0, "")
    assert gone(children)
    assert "database system is shut down" in (up.data / "logs/postgres.log").read_text(), "it was not killed"


def found(up: Up) -> Instance:
    """What a command finds that is given this folder."""
    instance = Instance()
    instance.named = up.data
    return instance


def test_a_command_starts_the_database_of_a_stopped_one_for_itself(start_up: StartUp) -> None:
    up = start_up()
    up.wait_until_ready()
    up.process.kill()
    up.outcome()
    assert found(up).running is None
    done = CliRunner().invoke(forgelet, ["migrate", "--check", "--data-dir", str(up.data)])
    assert done.exit_code == 2
    assert "tables of another application (starts)" in done.stderr, "the stand-in's"
    assert not DataDirectory(up.data).is_held()
    assert not (up.data / "postgres/data/postmaster.pid").exists()


def test_secrets_are_in_files_of_ours_alone_and_on_no_command_line(start_up: StartUp) -> None:
    up = start_up()
    up.wait_until_ready()
    files = list((up.data / "secrets").iterdir())
    assert {file.name for file in files} == {
        "edge-purge-token",
        "edge-storage-token",
        "postgres-password",
        "root-token",
    }
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert (up.data / "secrets").stat().st_mode & 0o777 == 0o700
    lines = [of_process(pid, "cmdline") for pid in [up.process.pid, *up.descendants()]]
    assert len(list(filter(None, lines))) > 4, "PostgreSQL has children too"
    assert not [file.name for file in files for line in lines if file.read_text().strip() in line]
    variables = [of_process(pid, "environ") for pid in up.children()]
    assert all(variables)
    tokens = {file.name: file.read_text().strip() for file in files if file.name.endswith("-token")}
    assert not [name for name, token in tokens.items() for text in variables if token in text]
    assert environment(up, "edge").keys() & {"ROOT_TOKEN", "DATABASE_URL"} == set()


def test_after_kill_9_the_next_up_finds_its_data_on_other_ports_and_shows_no_token_again(
    start_up: StartUp,
) -> None:
    first = start_up()
    first.wait_until_ready()
    children = first.children()
    first.process.kill()

    second = start_up()
    shown = second.wait_until_ready()
    assert gone(children)
    assert starts(second) == 2
    assert joined(second)["static_objects_external_storage_url"] == f"http://127.0.0.1:{second.ports[1]}"
    assert environment(second, "api")["ROOT_TOKEN"] not in shown
    assert str(second.data / "secrets/root-token") in shown


def test_what_outlived_a_killed_up_is_ended_before_its_ports_are_wanted_again(start_up: StartUp) -> None:
    """Also the programs that the servers had started, which work below their folders and may hold locks."""
    first = start_up(STAND_IN_EDGE="hangs at the end")
    first.wait_until_ready()
    children = first.children()
    below = first.data / "api/repositories/1.git"
    below.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], cwd=below) as program:
        first.process.kill()
        no_time = {f"FORGELET_{role}_SHUTDOWN_TIMEOUT": "0" for role in ("API", "EDGE")}
        second = start_up(ports=first.ports, **no_time)
        second.wait_until_ready()
        assert gone([*children, program.pid])


def test_a_preset_token_is_kept_for_later_runs(start_up: StartUp, place: Path) -> None:
    (place / "token").write_text("preset-token-1\n")
    up = start_up("--root-token-file", str(place / "token"))
    assert "preset-token-1" not in up.wait_until_ready()
    up.process.terminate()
    assert up.outcome() == (0, "")
    again = start_up("--no-edge", "--json")
    again.wait_until_ready(last="}")
    assert json.loads(again.shown) == {
        "api_url": f"http://127.0.0.1:{again.ports[0]}",
        "edge_url": None,
        "root_token_file": str(again.data / "secrets" / "root-token"),
        "data_dir": str(again.data),
    }
    assert environment(again, "api")["ROOT_TOKEN"] == "preset-token-1"
    assert len(again.children()) == 2
    assert joined(again)["static_objects_external_storage_url"] == ""
    assert "EDGE_URLS" not in environment(again, "api")


def test_a_process_that_ignores_the_signal_is_ended_all_the_same(start_up: StartUp) -> None:
    up = start_up(STAND_IN_EDGE="hangs at the end", FORGELET_EDGE_SHUTDOWN_TIMEOUT="0")
    up.wait_until_ready()
    children = up.children()
    up.process.terminate()
    assert up.outcome() == (0, "")
    assert gone(children)


def test_a_process_that_dies_at_the_start_is_one_sentence_with_its_last_words(start_up: StartUp) -> None:
    up = start_up(STAND_IN_API="dies")
    assert_one_sentence(
        up, "The API server stopped while starting", "the moon is in the wrong phase", "api.log"
    )


def test_an_external_database_is_used_in_place_of_ours(start_up: StartUp) -> None:
    with temporary_cluster() as cluster:
        up = start_up(FORGELET_DATABASE_URL=cluster.url())
        up.wait_until_ready()
        assert len(up.children()) == 2
        assert starts(up) == 1
        assert "DATABASE_URL" not in environment(up, "edge")
        up.process.terminate()
        assert up.outcome() == (0, "")


def test_a_busy_port_is_one_sentence(start_up: StartUp) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        up = start_up(ports=(free_ports()[0], port))
        assert_one_sentence(up, f"Port {port} of 127.0.0.1", "--edge-port")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--edge-port", "5000", "--api-port", "5000"), "both 5000"),
        (("--root-token", "two words"), "--root-token has to be"),
        (("--root-token-file", "/dev/null"), "What --root-token-file names (/dev/null) has to be 8 to 255"),
        (("--data-dir", ""), "--data-dir is empty"),
        (("--data-dir", "/dev/null/data"), "The data directory /dev/null/data cannot be used"),
        (("--database-url", "postgresql://alice:hunter2@127.0.0.1:1/x"), "--database-url cannot be used"),
    ],
)
def test_what_cannot_work_is_one_sentence(start_up: StartUp, options: tuple[str, ...], words: str) -> None:
    up = start_up(*options)
    assert_one_sentence(up, words)
    assert "hunter2" not in up.shown


def test_a_missing_git_is_one_sentence(start_up: StartUp, place: Path) -> None:
    assert_one_sentence(start_up(PATH=str(place)), "git was not found")
