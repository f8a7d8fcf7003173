"""`forgelet config show`: every setting, its value and where it comes from, without secrets."""

from pathlib import Path

import attrs
import pytest

from api_server.settings import Settings as ApiSettings
from storage_edge.settings import Settings as EdgeSettings

from .running import answer, of_server

URL = "postgresql://me:hunter2@127.0.0.1:1/none"


def test_every_setting_is_shown_with_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hunter2hunter2\n")
    settings = tmp_path / "settings.toml"
    settings.write_text('[api_server]\nroot_token_file = "token"\ntier = "free"\n[edge]\nport = 9\n')
    monkeypatch.setenv("FORGELET_EDGE_STORAGE_TOKEN", "hunter2")
    environment = {"FORGELET_SETTINGS": str(settings)}
    rows = answer(of_server(URL, tmp_path, "config", "show", "--json", **environment))
    assert "hunter2" not in str(rows)
    shown = {(row["process"], row["setting"]): (row["value"], row["source"]) for row in rows}
    named = {("api", field.name) for field in attrs.fields(ApiSettings)}
    assert shown.keys() == named | {("edge", field.name) for field in attrs.fields(EdgeSettings)}
    assert shown["api", "database_url"] == (
        "postgresql://me:***@127.0.0.1:1/none",
        "FORGELET_API_DATABASE_URL",
    )
    assert shown["api", "tier"] == ("free", f"tier in section [api_server] of {settings}")
    assert shown["api", "root_token"] == ("***", "the file of root_token_file")
    assert shown["api", "port"] == (8080, "default")
    assert shown["edge", "port"] == (9, f"port in section [edge] of {settings}")
    assert shown["edge", "storage_token"] == ("***", "FORGELET_EDGE_STORAGE_TOKEN")
    assert shown["edge", "purge_token"] == ("", "default")


def test_what_has_its_default_can_be_left_out(tmp_path: Path) -> None:
    rows = answer(of_server(URL, tmp_path, "config", "show", "--changed", "--json"))
    assert [(row["process"], row["setting"], row["value"]) for row in rows] == [
        ("api", "database_url", "postgresql://me:***@127.0.0.1:1/none"),
        ("api", "data_dir", str(tmp_path)),
    ]


def test_people_get_a_table(tmp_path: Path) -> None:
    lines = of_server(URL, tmp_path, "config", "show", "--changed").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["PROCESS", "SETTING"],
        ["api", "database_url"],
        ["api", "data_dir"],
    ]
