"""`forgelet up` with stand-ins for the two processes: what it starts, stores and prints, with `--testing` and
without."""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from click.testing import CliRunner
from yarl import URL

from common.config_errors import as_typed, own_command
from forgelet.command_line import forgelet
from forgelet.commands.up import ReadyFile
from forgelet.instance import Instance
from forgelet.local import data_directory, throwaway_data
from forgelet.local.data_directory import DataDirectory
from forgelet.local.embedded_postgres import temporary_cluster
from forgelet.local.processes import CannotStart, reason_in
from tests.forgelet.local.conftest import Up, come_true, free_ports, given, gone, of_process
from tests.support.checkout import CHECKOUT

StartUp = Callable[..., Up]


def joined(up: Up) -> dict[str, str]:
    settings: dict[str, str] = json.loads((up.data / "api/settings.json").read_text())
    return settings


def environment(up: Up, role: str) -> dict[str, str]:
    return given(up.data, role)


def starts(up: Up) -> int:
    """Return how often the API server has started on this database, from a row that each start adds."""
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


def test_up_starts_everything_joins_it_and_a_signal_ends_it(
    start_up: StartUp, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with contextlib.chdir(place):
        assert f"{own_command(up.data)} user password root\n" in shown
    monkeypatch.setenv("XDG_STATE_HOME", str(place))
    assert [data.path for data in data_directory.registered()] == [up.data], "commands find it by themselves"

    up.process.send_signal(signal.SIGINT)
    assert up.outcome() == (0, "")
    assert gone(children)
    assert "database system is shut down" in (up.data / "logs/postgres.log").read_text(), "it was not killed"


def found(up: Up) -> Instance:
    """Return the instance that a command finds in this folder."""
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
    """This includes the programs that the servers had started, which work below their folders and may hold locks."""
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


def test_commands_are_named_as_they_can_be_typed(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.chdir(CHECKOUT)
    assert own_command() == "scripts/forgelet"
    assert (CHECKOUT / "scripts/forgelet").exists()
    assert own_command(Path("/a b")) == "scripts/forgelet --data-dir '/a b'"
    assert as_typed("Run `forgelet migrate`, not forgelet") == "Run `scripts/forgelet migrate`, not forgelet"
    monkeypatch.chdir(place)
    assert own_command() == shlex.quote(str(CHECKOUT / "scripts/forgelet"))
    monkeypatch.setattr("common.config_errors._SCRIPT", place / "none")
    installed = Path(sys.executable).with_name("forgelet")
    monkeypatch.setenv("PATH", str(place))
    assert own_command() == shlex.quote(str(installed))
    monkeypatch.setenv("PATH", str(installed.parent))
    assert own_command() in ("forgelet", shlex.quote(str(installed)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("starting\nthe moon is wrong\n\n", "the moon is wrong"),
        ("", ""),
        (
            'initdb: error: could not write to file "pg_wal/xlogtemp.9": No space left on device\n'
            "child process exited with exit code 1\n"
            'initdb: removing data directory "/data"\n',
            'initdb: error: could not write to file "pg_wal/xlogtemp.9": No space left on device',
        ),
        (
            "10:00 [7] FATAL:  could not create any TCP/IP sockets\n10:00 [7] LOG:  database system is shut down\n",
            "10:00 [7] FATAL:  could not create any TCP/IP sockets",
        ),
        (
            "psycopg2.errors.DiskFull: could not extend file: No space left on device\n"
            "HINT:  Check free disk space.\nerror: it is over\n",
            "psycopg2.errors.DiskFull: could not extend file: No space left on device",
        ),
        (
            "remote: checking\n ! [remote rejected] HEAD -> main (it is archived)\n"
            "error: failed to push some refs to 'http://forge'\n",
            "! [remote rejected] HEAD -> main (it is archived)",
        ),
        (
            "fatal: Authentication failed for 'http://forge'\n",
            "fatal: Authentication failed for 'http://forge'",
        ),
    ],
)
def test_of_what_a_program_writes_the_reason_is_told(text: str, reason: str) -> None:
    assert reason_in(text) == reason


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
        (
            ("--database-url", "postgresql://alice:hunter2%ei@127.0.0.1:1/x"),
            "--database-url has to be a URL such as postgresql://host/database",
        ),
    ],
)
def test_what_cannot_work_is_one_sentence(start_up: StartUp, options: tuple[str, ...], words: str) -> None:
    up = start_up(*options)
    assert_one_sentence(up, words)
    assert "hunter2" not in up.shown


def test_a_folder_of_something_else_is_left_as_it_is(start_up: StartUp, place: Path) -> None:
    for name in ("lost+found", ".cache"):
        (place / name).mkdir()
    (place / "letter").write_text("dear")
    assert_one_sentence(
        start_up("--data-dir", str(place)), f"The data directory {place} contains something else"
    )
    assert {entry.name for entry in place.iterdir()} == {"lost+found", ".cache", "letter"}
    (place / "letter").unlink()
    up = start_up("--data-dir", str(place))
    up.wait_until_ready()
    up.process.terminate()
    assert up.outcome() == (0, "")


def test_a_missing_git_is_one_sentence(start_up: StartUp, place: Path) -> None:
    assert_one_sentence(start_up(PATH=str(place)), "git was not found")


StartTesting = Callable[..., Up]


def facts(up: Up) -> dict[str, Any]:
    """Return the content of the ready file, once it exists."""
    come_true(lambda: up.ready_file.exists() or up.process.poll() is not None)
    assert up.ready_file.exists(), up.outcome()
    found: dict[str, Any] = json.loads(up.ready_file.read_text())
    return found


def test_two_at_once_have_ports_and_data_of_their_own_and_leave_nothing(start_testing: StartTesting) -> None:
    ups = [start_testing(), start_testing()]
    found = [facts(up) for up in ups]
    assert not list(ups[0].data.rglob("forgelet/instances/*")), (
        "commands that name no folder are not for them"
    )
    ports = {one[key] for one in found for key in ("url", "edge_url")}
    assert len(ports) == 4
    for up, one in zip(ups, found, strict=True):
        assert list(one) == ["url", "api_url", "edge_url", "root_token", "data_dir", "version", "pid"]
        assert one["api_url"] == one["url"] + "/api/v4"
        assert one["pid"] == up.process.pid
        assert up.ready_file.stat().st_mode & 0o777 == 0o600
        data = Path(one["data_dir"])
        assert data.parent == Path("/dev/shm")
        assert (data / "secrets/root-token").read_text().strip() == one["root_token"]
        of_api, of_edge = given(data, "api"), given(data, "edge")
        assert (of_api["EXTERNAL_URL"], of_api["EDGE_URLS"]) == (one["url"], one["edge_url"])
        assert (of_edge["ORIGIN"], of_api["TESTING"]) == (one["url"], "true")
        assert of_edge["TESTING"] == "true"
        assert json.loads((data / "api/start.json").read_text()) == {"as": "start"}
        children = up.children()
        up.process.terminate()
        assert up.outcome() == (0, "")
        assert gone(children, seconds=0.5)
        assert not up.ready_file.exists()
        assert not data.exists()


def test_others_are_let_in_where_that_is_asked_for_and_get_urls_that_lead_here(
    start_testing: StartTesting,
) -> None:
    up = start_testing("--host", "0.0.0.0", "--external-host", "forge")
    found = facts(up)
    url, edge_url = URL(found["url"]), URL(found["edge_url"])
    assert (url.host, edge_url.host) == ("forge", "forge")
    data = Path(found["data_dir"])
    of_api, of_edge = given(data, "api"), given(data, "edge")
    assert (of_api["HOST"], of_api["EXTERNAL_URL"]) == ("0.0.0.0", found["url"])
    assert (of_edge["HOST"], of_edge["ORIGIN"]) == ("0.0.0.0", f"http://127.0.0.1:{url.port}")
    assert of_api["EDGE_URLS"] == f"http://127.0.0.1:{edge_url.port}"
    told = json.loads((Path(of_api["DATA_DIR"]) / "settings.json").read_text())
    assert told["static_objects_external_storage_url"] == found["edge_url"]
    for port in (url.port, edge_url.port):
        assert port is not None
        socket.create_connection(("127.0.0.2", port), timeout=5).close()


def test_what_a_killed_one_left_is_removed_by_the_next(start_testing: StartTesting) -> None:
    first = start_testing("--no-edge")
    found = facts(first)
    assert found["edge_url"] is None
    first.process.kill()
    first.outcome()
    second = start_testing("--no-edge", ready_file=first.ready_file)
    come_true(lambda: facts(second)["pid"] == second.process.pid)
    assert not Path(found["data_dir"]).exists()


def test_what_was_left_goes_though_its_number_is_another_process_now(
    monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    monkeypatch.setattr(throwaway_data, "SHARED_MEMORY", place)
    monkeypatch.setattr(throwaway_data, "temporary_root", lambda: str(place))
    left, held, new = (place / f"forgelet-testing-{os.getpid()}-{digit * 16}" for digit in "012")
    for folder in (left, held, new):
        folder.mkdir()
    with DataDirectory(held).opened():
        for folder in (left, held):
            os.utime(folder, (0, 0))
        with throwaway_data.passing_data():
            assert sorted(place.iterdir()) == [held, new]


def test_the_log_that_a_failed_start_names_is_there_until_the_next_start(
    monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    monkeypatch.setattr(throwaway_data, "SHARED_MEMORY", place)
    monkeypatch.setattr(throwaway_data, "temporary_root", lambda: str(place))

    def fail() -> None:
        with throwaway_data.passing_data() as data, data.opened():
            data.part("postgres")
            log = data.log("api")
            log.write_text("the moon is in the wrong phase")
            raise CannotStart(str(log))

    with pytest.raises(CannotStart) as failed:
        fail()
    log = Path(str(failed.value))
    folder = log.parent.parent
    assert log.read_text() == "the moon is in the wrong phase"
    assert not (folder / "postgres").exists()
    os.utime(folder, (0, 0))  # a new one may still be starting
    with throwaway_data.passing_data() as data, data.opened():
        assert list(place.iterdir()) == [data.path]
    assert list(place.iterdir()) == [], "nothing was wrong"


def test_a_ready_file_goes_with_who_wrote_it_and_not_with_one_of_the_same_number(place: Path) -> None:
    file = place / "ready.json"
    with ReadyFile(file).written({"url": "first"}):
        with ReadyFile(file).written({"url": "second"}):
            pass
        assert not file.exists()
    with ReadyFile(file).written({"url": "first"}):
        later = ReadyFile(file).written({"url": "second"})
        later.__enter__()
    assert json.loads(file.read_text())["url"] == "second"
    later.__exit__(None, None, None)
    assert list(place.iterdir()) == []


def test_it_ends_with_the_pipe_that_its_parent_holds(start_testing: StartTesting) -> None:
    up = start_testing("--until-eof", "--gitlab-version", "16.4", stdin=subprocess.PIPE)
    found = facts(up)
    assert given(Path(found["data_dir"]), "api")["GITLAB_VERSION"] == "16.4"
    up.hang_up()
    assert up.outcome() == (0, "")
    assert not Path(found["data_dir"]).exists()


def test_a_start_that_takes_too_long_is_given_up(start_testing: StartTesting) -> None:
    up = start_testing(STAND_IN_API="is never ready", FORGELET_START_TIMEOUT="0.5")
    status, errors = up.outcome()
    assert (status, errors.count("\n")) == (2, 1)
    assert " was not ready after 0.5 s (logs: " in errors, "which stay until the next start"


def test_it_ends_with_the_pipe_also_before_it_is_ready(start_testing: StartTesting) -> None:
    up = start_testing("--until-eof", stdin=subprocess.PIPE, FORGELET_DATA_DIR="/of-another")
    up.wait_for("Starting")  # the variable names the folder of another service
    up.hang_up()
    assert up.outcome() == (0, "")
    assert not up.ready_file.exists()
    assert list(Path("/dev/shm").glob(f"forgelet-testing-{up.process.pid}-*")) == []


def test_a_named_folder_keeps_what_was_there(start_testing: StartTesting, place: Path) -> None:
    (place / "data").mkdir(mode=0o711)
    up = start_testing("--no-edge", "--data-dir", str(place / "data"))
    assert facts(up)["data_dir"] == str(place / "data")
    up.process.terminate()
    assert up.outcome() == (0, "")
    assert (place / "data/logs/api.log").exists()
    again = start_testing("--data-dir", str(place / "data"))
    assert_one_line(again, f"there is something in {place}/data: name an empty folder")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--database-url", "postgresql:///x"), "leave out --database-url"),
        (("--gitlab-version", "latest"), "--gitlab-version has to be a version such as 17.11"),
        (
            ("--ready-file", "/nowhere/ready.json"),
            "The ready file cannot be written: No such file or directory",
        ),
        (("--until-eof",), "Standard input has ended already"),
        (("--host", "localhost"), "--host has to be an IPv4 address, such as 0.0.0.0"),
        (("--host", "192.0.2.1", "--api-port", "8080"), "choose another --host"),
        (("--external-host", "http://forge"), "--external-host has to be the name or the IPv4 address"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    start_testing: StartTesting, options: tuple[str, ...], words: str
) -> None:
    assert_one_line(start_testing(*options), words)


def assert_one_line(up: Up, words: str) -> None:
    status, errors = up.outcome()
    assert (status, errors.count("\n")) == (2, 1)
    assert words in errors
    assert list(Path("/dev/shm").glob(f"forgelet-testing-{up.process.pid}-*")) == []
