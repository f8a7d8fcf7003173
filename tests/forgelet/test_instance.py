"""The instance that a command uses: the running one, the named one, or that of the server's own settings."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.config_errors import ConfigError
from forgelet.instance import Instance
from forgelet.local import data_directory, variables
from forgelet.local.data_directory import DataDirectory

ADDRESSES = variables.Addresses(1234, 1235)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An account without any forgelet."""
    for name in ("DATA_DIR", "SETTINGS", "API_DATABASE_URL", "API_DATA_DIR", "DATABASE_URL"):
        monkeypatch.delenv(f"FORGELET_{name}", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(data_directory, "CHECKOUT", None)
    return tmp_path


@contextlib.contextmanager
def written(data: DataDirectory) -> Iterator[None]:
    """Store what `up` stores, for the duration of the block."""
    given = variables.of_api(data, ADDRESSES, "postgresql://x:hunter2@/y") | {
        "FORGELET_API_TIER": "free",
        "HOME": "/",
    }
    with (
        data_directory.written_down(data, ADDRESSES.api_url, ADDRESSES.edge_url, given),
        data_directory.registration(data),
    ):
        yield


def found() -> Path | None:
    data = Instance().data
    return data and data.path


def test_one_that_runs_is_found_by_itself_until_it_ends(home: Path) -> None:
    data = DataDirectory(home / "somewhere else")
    with data.opened(), written(data):
        instance = Instance()
        assert instance.data
        assert instance.data.path == data.path
        assert instance.api_settings.tier == "free"
        assert instance.api_url == instance.api_settings.base_url == "http://127.0.0.1:1234"
        assert instance.edge_urls == ["http://127.0.0.1:1235"]
        assert instance.purge_token == data.read_secret("edge-purge-token")
        assert instance.ready_database_url == "postgresql://x:hunter2@/y"
        file = data.path / "state/running"
        assert file.stat().st_mode & 0o777 == 0o600
        assert "HOME" not in json.loads(file.read_text())["variables"]
    with pytest.raises(ConfigError, match=r"^No forgelet runs here: start `forgelet up`, "):
        found()


def test_one_that_was_killed_does_not_run(home: Path) -> None:
    data = DataDirectory(home / "data")
    with data.opened():
        left = written(data)
        left.__enter__()  # and never left: its process was killed, which frees the folder
    assert data_directory.found_running(data) is None
    assert data_directory.registered() == []
    with data.opened():
        assert data.recall("running") is None


def test_of_several_one_has_to_be_named_but_the_default_one(home: Path) -> None:
    one, other, usual = (DataDirectory(home / name) for name in ("one", "other", "home/forgelet"))
    with one.opened(), written(one), other.opened(), written(other):
        with pytest.raises(ConfigError) as refused:
            found()
        assert str(one.path) in refused.value.message
        assert str(other.path) in refused.value.message
        named = Instance()
        named.named = other.path
        assert named.data
        assert named.data.path == other.path
        with usual.opened(), written(usual):
            assert found() == usual.path


def test_the_servers_own_settings_count_more_than_what_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataDirectory(home / "data")
    with data.opened(), written(data):
        (home / "settings.toml").write_text("[api_server]\nlog_level = 'DEBUG'\n")
        monkeypatch.setenv("FORGELET_SETTINGS", str(home / "settings.toml"))
        assert found() == data.path
        (home / "settings.toml").write_text(
            "[api_server]\ndatabase-url = 'postgresql:///z'\ndata-dir = 'd'\n"
        )
        instance = Instance()
        assert instance.data is None
        assert instance.api_settings.database_url == "postgresql:///z"
        assert instance.api_settings.data_dir == home / "d"


def test_one_that_is_stopped_is_known_by_its_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataDirectory(home / "data")
    with data.opened():
        variables.remember(data, ADDRESSES)
    instance = Instance()
    instance.named = data.path
    assert instance.running is None
    with pytest.raises(
        ConfigError, match="has no database of its own: name the one that it uses with FORGELET_DATABASE"
    ):
        _ = instance.api_settings
    monkeypatch.setenv("FORGELET_DATABASE_URL", "postgresql:///z")
    instance = Instance()
    instance.named = data.path
    assert instance.api_settings.database_url == "postgresql:///z"
    assert instance.api_url == "http://127.0.0.1:1234"


def test_a_folder_that_is_no_forgelets_is_refused(home: Path) -> None:
    instance = Instance()
    instance.named = home
    with pytest.raises(
        ConfigError, match=f"^{home} is not the data directory of a forgelet: name another with --data-dir$"
    ):
        _ = instance.data
