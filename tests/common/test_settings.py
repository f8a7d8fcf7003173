"""Settings of a process from variables and flags."""

import pytest
from click.testing import CliRunner

from api_server.settings import Settings
from common import settings


@pytest.mark.parametrize(
    ("variable", "flags", "urls"),
    [
        ("http://127.0.0.1:8081", [], ["http://127.0.0.1:8081"]),
        (
            "http://a.example.org:1,http://b.example.org:2",
            [],
            ["http://a.example.org:1", "http://b.example.org:2"],
        ),
        ("", ["--edge-urls", "http://c.example.org:3"], ["http://c.example.org:3"]),
    ],
)
def test_lists_in_variables_are_told_apart_by_commas(
    variable: str, flags: list[str], urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv("FORGELET_API_EDGE_URLS", variable)
    read: list[Settings] = []
    command = settings.command(Settings, section="api_server", env_prefix="FORGELET_API_", run=read.append)
    arguments = ["--database-url", "postgresql://x", "--data-dir", "data", *flags]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert [chosen.edge_urls for chosen in read] == [urls]
