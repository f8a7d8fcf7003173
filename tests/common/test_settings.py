"""Settings of a process from variables and flags."""

import ast
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from api_server.settings import Settings
from common import settings
from common.config_errors import ConfigError
from common.settings import Sources, fits, form_of
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


#: Each process with its required flags.
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
    """A file has priority over the setting beside it; an unreadable one is reported in one sentence."""
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
    """Lists, booleans, paths, numbers and secrets, from variables and the file."""
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
    """The warning does not have its value, which may be a secret in the wrong place."""
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
        with pytest.raises(ConfigError) as refused:
            sources(NEEDED | {f"FORGELET_API_{name}": "hun ter2"}).settings()
        assert "ter2" not in refused.value.message


ROOT = Path(__file__).parents[2]
FILES = sorted(path for part in ("common", "storage_edge") for path in (ROOT / part).rglob("*.py"))
#: Sources of time and randomness, and the modules that may use them. Time-outs use the event loop's clock, and those
#: of threads the monotonic one, which do not tell the time.
TELLS_TIME = {f"time.{name}" for name in ("time", "time_ns", "localtime", "gmtime", "ctime", "strftime")}
SOURCES = TELLS_TIME | {"datetime", "random", "secrets", "uuid", "os.urandom", "os.getrandom"}
HANDED_IN_BY = {
    "storage_edge/app.py": {"time.time", "os.urandom"},
    # a line contains when it was written, whatever clock an application has
    "common/logs.py": {"datetime", "time.time_ns", "time.gmtime", "time.strftime"},
    "common/workers.py": {"os.urandom"},  # by the supervisor, which is not an application
    "storage_edge/client/operators.py": {"time.gmtime", "time.strftime"},  # formats given moments
}
#: The module in which the only session for outgoing requests is created.
SESSIONS = "storage_edge/cache/origin.py"


def _names(tree: ast.Module) -> Iterator[str]:
    """Return all imported modules, and all names with one dot that are imported or used."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{name.name}" for name in names)
            case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
                yield f"{owner}.{attribute}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_only_the_application_asks_for_time_and_randomness(file: Path) -> None:
    place = str(file.relative_to(ROOT))
    names = set(_names(ast.parse(file.read_text())))
    assert names & SOURCES <= HANDED_IN_BY.get(place, set())
    assert "aiohttp.ClientSession" not in names or place == SESSIONS


@pytest.mark.parametrize(
    "source",
    ["import time\nnow = time.time()", "import datetime as dt", "from time import time_ns",
     "from secrets import token_hex", "import os\ndef f(): return os.urandom(4)", "from os import urandom"],
)  # fmt: skip
def test_the_rule_finds_what_breaks_it(source: str) -> None:
    assert set(_names(ast.parse(source))) & SOURCES
