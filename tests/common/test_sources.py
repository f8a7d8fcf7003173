"""Where settings come from: the same for a process and for the commands beside it."""

import math
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from api_server.settings import Settings
from common import settings
from common.mistakes import Mistake
from common.settings import Sources, fits, form_of
from storage_edge.settings import Settings as EdgeSettings

NUMBERS = [
    pytest.param(field, id=f"{kind.__module__}.{field.name}")
    for kind in (Settings, EdgeSettings)
    for field in attrs.fields(kind)
    if field.type in (int, float)
]
NEEDED = {"FORGELET_API_DATABASE_URL": "postgresql://x/y", "FORGELET_API_DATA_DIR": "/data"}


def sources(environment: dict[str, str]) -> Sources[Settings]:
    return Sources(
        settings_class=Settings, section="api_server", env_prefix="FORGELET_API_", environment=environment
    )


@pytest.mark.parametrize("field", NUMBERS)
def test_every_number_has_a_range_without_nonsense(field: "attrs.Attribute[Any]") -> None:
    assert form_of(field) is not None, "metadata say which numbers make sense"
    assert fits(field, field.default)
    assert not any(fits(field, nonsense) for nonsense in (-1, 2**63, -math.inf, math.inf, math.nan))
    says_what_zero_is = "0 " in field.metadata["typed-settings"]["help"]
    if field.type is int:
        assert fits(field, 0) is says_what_zero_is


@pytest.mark.parametrize("kind", [Settings, EdgeSettings])
def test_every_setting_says_something_of_its_own(kind: Any) -> None:
    said = [field.metadata["typed-settings"]["help"] for field in attrs.fields(kind)]
    repeated = {text for text in said if said.count(text) > 1}
    assert {
        text for text in repeated if not text.lower().startswith(("the token itself", "of these, "))
    } == set()


def test_a_process_and_the_commands_beside_it_read_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists, truths, paths, numbers and secrets, from variables and the file."""
    (tmp_path / "token").write_text("from-a-file\n")
    (tmp_path / "settings.toml").write_text(
        "[api_server]\ndata_dir = 'data'\nroot-token-file = 'token'\nport = 1\nsend_timeout = 5\n"
        "operations_networks = ['10.0.0.0/8', '::1']\nwork = false\n[edge]\nport = 2\n"
    )
    environment = {
        "FORGELET_API_DATABASE_URL": "postgresql://x/y",
        "FORGELET_API_PORT": "8081",
        "FORGELET_API_EDGE_URLS": "http://a:1, http://b:2,",
        "FORGELET_API_PREPARE_STATEMENTS": "No",
        "FORGELET_API_EDGE_PURGE_TOKEN_FILE": "",
        "FORGELET_SETTINGS": str(tmp_path / "settings.toml"),
    }
    wanted = Settings(
        database_url="postgresql://x/y",
        data_dir=tmp_path / "data",
        root_token="from-a-file",
        root_token_file=tmp_path / "token",
        port=8081,
        send_timeout=5.0,
        operations_networks=["10.0.0.0/8", "::1"],
        edge_urls=["http://a:1", "http://b:2"],
        work=False,
        prepare_statements=False,
    )
    assert sources(environment).settings() == wanted
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    read: list[Settings] = []
    process = settings.command(Settings, section="api_server", env_prefix="FORGELET_API_", run=read.append)
    ended = CliRunner().invoke(process)
    assert (ended.output, read) == ("", [wanted])
    ended = CliRunner().invoke(
        process, ["--port", "9", "--work", "--edge-urls", "http://c", "--data-dir", "d"]
    )
    flagged = attrs.evolve(wanted, port=9, work=True, edge_urls=["http://c"], data_dir=Path.cwd() / "d")
    assert (ended.output, read[1:]) == ("", [flagged])


def test_a_variable_that_names_no_setting_is_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    """Without its value, which may be a secret in the wrong place."""
    given = NEEDED | {"FORGELET_API_PROT": "hunter2", "FORGELET_API_port": "8", "FORGELET_EDGE_PROT": "1"}
    assert sources(given).settings().port == 8080
    assert capfd.readouterr() == (
        "",
        "Warning: FORGELET_API_PROT names no setting; did you mean FORGELET_API_PORT?\n"
        "Warning: FORGELET_API_port names no setting; did you mean FORGELET_API_PORT?\n",
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "[edge]\nport = 1\n"])
def test_a_file_may_say_nothing_of_a_process(text: str, tmp_path: Path) -> None:
    (tmp_path / "s").write_text(text)
    given = NEEDED | {"FORGELET_SETTINGS": str(tmp_path / "s")}
    assert sources(given).settings() == sources(NEEDED).settings()


def test_no_value_is_shown_in_a_refusal() -> None:
    for name in ("PORT", "WORK", "TIER", "DATABASE_URL", "ROOT_TOKEN", "EDGE_URLS"):
        with pytest.raises(Mistake) as refused:
            sources(NEEDED | {f"FORGELET_API_{name}": "hun ter2"}).settings()
        assert "ter2" not in refused.value.message
