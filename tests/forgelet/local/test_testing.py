"""`forgelet up --testing` with stand-ins for the two processes: ports, ready file, data in memory, and its end."""

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from forgelet.commands.up import ReadyFile
from forgelet.local import throwaway_data
from forgelet.local.data_directory import DataDirectory
from forgelet.local.processes import CannotStart

from .conftest import Up, come_true, given, gone

StartTesting = Callable[..., Up]


def facts(up: Up) -> dict[str, Any]:
    """What the ready file says, once it is there."""
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
    os.utime(folder, (0, 0))  # one that is new may be only beginning
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
    assert_one_sentence(again, f"there is something in {place}/data: name an empty folder")


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
        (("--host", "192.0.2.1", "--api-port", "8080"), "Port 8080 of 192.0.2.1 cannot be used"),
        (("--external-host", "http://forge"), "--external-host has to be the name or the IPv4 address"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    start_testing: StartTesting, options: tuple[str, ...], words: str
) -> None:
    assert_one_sentence(start_testing(*options), words)


def assert_one_sentence(up: Up, words: str) -> None:
    status, errors = up.outcome()
    assert (status, errors.count("\n")) == (2, 1)
    assert words in errors
    assert list(Path("/dev/shm").glob(f"forgelet-testing-{up.process.pid}-*")) == []
