"""Settings of a process from variables and flags."""

from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from api_server.settings import Settings
from common import settings
from storage_edge.settings import Settings as EdgeSettings


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


@pytest.mark.parametrize(
    ("flag", "value", "forms"),
    [
        ("--smtp-url", "mail.example.org", "smtp://host or smtps://host"),
        ("--smtp-url", "ftp://alice:hunter2@mail.example.org", "smtp://host or smtps://host"),
        ("--smtp-url", "smtp://alice:hunter2@mail.example.org:mail", "smtp://host or smtps://host"),
        ("--smtp-url", "smtp://alice:hunter2@mail.example.org:99999", "smtp://host or smtps://host"),
        ("--smtp-url", "smtp://", "smtp://host or smtps://host"),
        ("--smtp-url", "smtp://[::1", "smtp://host or smtps://host"),
        ("--database-url", "host=localhost password=hunter2", "postgresql://host or postgres://host"),
        ("--database-url", "postgresql://x:hunter2@localhost:x/y", "postgresql://host or postgres://host"),
        ("--database-url", "postgresql://x:hunter2@one:1,two:x/y", "postgresql://host or postgres://host"),
        ("--database-url", "postgresql://x:hunter2%zz@localhost/y", "postgresql://host or postgres://host"),
        ("--external-url", "forge.example.org", "http://host or https://host"),
        ("--object-store-url", "/folder", "file:///folder or s3://bucket"),
        ("--object-store-url", "file://folder", "file:///folder or s3://bucket"),
        ("--object-store-url", "s3:///hunter2", "file:///folder or s3://bucket"),
        ("--edge-urls", "localhost:8081", "http://host or https://host"),
    ],
)
def test_a_url_that_is_none_is_one_sentence_and_not_shown(flag: str, value: str, forms: str) -> None:
    read: list[Settings] = []
    command = settings.command(Settings, section="api_server", env_prefix="FORGELET_API_", run=read.append)
    arguments = ["--database-url", "postgresql://x", "--data-dir", "data", flag, value]
    done = CliRunner().invoke(command, arguments)
    assert (done.exit_code, read) == (2, [])
    assert done.output.splitlines()[-1] == f"Error: {flag} has to be a URL such as {forms}"
    assert "hunter2" not in done.output


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--smtp-url", ""),
        ("--smtp-url", "smtps://alice:hunter2@[::1]:465"),
        ("--database-url", "postgresql:///forgelet?host=/run/postgresql"),
        ("--database-url", "postgres://alice@db.example.org:5432/forgelet"),
        ("--database-url", "postgresql://alice:p%40@[::1]:5432,db/forgelet?target_session_attrs=read-write"),
        ("--external-url", "https://example.org/forge/"),
        ("--object-store-url", "file:///folder"),
        ("--object-store-url", "s3://bucket/prefix"),
    ],
)
def test_urls_of_every_form_are_taken(flag: str, value: str) -> None:
    read: list[Settings] = []
    command = settings.command(Settings, section="api_server", env_prefix="FORGELET_API_", run=read.append)
    arguments = ["--database-url", "postgresql://x", "--data-dir", "data", flag, value]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert getattr(read[0], flag.strip("-").replace("-", "_")) == value


@pytest.mark.parametrize(
    ("value", "accepted"), [("10.0.0.0/8,::1", True), ("", True), ("proxy.example.org", False)]
)
def test_networks_are_addresses_or_networks(
    monkeypatch: pytest.MonkeyPatch, value: str, accepted: bool
) -> None:
    monkeypatch.setenv("FORGELET_API_TRUSTED_PROXIES", value)
    read: list[Settings] = []
    command = settings.command(Settings, section="api_server", env_prefix="FORGELET_API_", run=read.append)
    done = CliRunner().invoke(command, ["--database-url", "postgresql://x", "--data-dir", "d"])
    assert (done.exit_code == 0, len(read)) == (accepted, int(accepted))
    wanted = "Error: FORGELET_API_TRUSTED_PROXIES has to be an address or a network such as 10.0.0.0/8"
    assert (wanted in done.output) is not accepted


#: Each process with the flags that it cannot do without.
PROCESSES: list[tuple[Any, str, list[str]]] = [
    (Settings, "FORGELET_API_", ["--database-url", "postgresql://x", "--data-dir", "data"]),
    (EdgeSettings, "FORGELET_EDGE_", []),
]


def _tokens(process: Any) -> list[str]:
    return [field.name for field in attrs.fields(process) if field.name.endswith("_token")]


@pytest.mark.parametrize(
    ("process", "prefix", "flags", "name"),
    [(*process, name) for process in PROCESSES for name in _tokens(process[0])],
)
def test_every_token_comes_out_of_a_file_too(
    process: Any, prefix: str, flags: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which counts more than what stands beside it; what cannot be read is one sentence."""
    monkeypatch.setenv(f"{prefix}{name.upper()}", "from-the-variable")
    read: list[Any] = []
    command = settings.command(process, section="process", env_prefix=prefix, run=read.append)
    flag, file = f"--{name.replace('_', '-')}-file", tmp_path / "token"
    file.write_text(" from-the-file\n")
    assert CliRunner().invoke(command, flags).exit_code == 0
    assert CliRunner().invoke(command, [*flags, flag, str(file)]).exit_code == 0
    assert [str(getattr(chosen, name)) for chosen in read] == ["from-the-variable", "from-the-file"]
    assert "from-the-file" not in repr(read[1])
    for bytes_, problem in ((b" \n", "is empty"), (b"\xff", "is not a text")):
        file.write_bytes(bytes_)
        done = CliRunner().invoke(command, [*flags, flag, str(file)])
        assert (done.exit_code, done.output.splitlines()[-1]) == (2, f"Error: {flag} {problem}: {file}")
    done = CliRunner().invoke(command, [*flags, flag, "/nowhere"])
    told = f"Error: {flag} cannot be read: No such file or directory: /nowhere"
    assert (done.exit_code, done.output.splitlines()[-1], len(read)) == (2, told, 2)
