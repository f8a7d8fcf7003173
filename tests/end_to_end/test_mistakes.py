"""Settings that name unusable things: files, folders, programs, stores, addresses, databases."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import attrs
import pytest
import yaml

from common.config_errors import own_command
from forgelet.local.embedded_postgres import Cluster, autocommitting
from tests.support.database_roles import with_another_role
from tests.support.mistakes import furnish
from tests.support.ports import free_port
from tests.support.preloaded import Programs, preloaded


@attrs.frozen
class Mistaken:
    """A row of mistakes.yml; `program` is `api`, `edge`, `commands`, or several of them."""

    program: str
    flags: str
    sentence: str
    environment: Mapping[str, str | None] = attrs.field(factory=dict, kw_only=True)
    file: str | None = attrs.field(default=None, kw_only=True)
    unprivileged: bool = attrs.field(default=False, kw_only=True)

    def __str__(self) -> str:
        given = [f"{name}={value or ''}" for name, value in self.environment.items()]
        return " ".join(filter(None, [self.program, self.flags, *given, self.file]))


_TABLE = yaml.safe_load(Path(__file__).with_name("mistakes.yml").read_text())
WORDS: dict[str, str] = _TABLE["words"]
MISTAKES = [Mistaken(*row[:3], **dict(*row[3:])) for row in _TABLE["mistakes"]]
MODULES = {"api": "api_server", "edge": "storage_edge", "commands": "forgelet"}


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with preloaded("api_server.__main__", "storage_edge.__main__", "forgelet.command_line") as programs:
        yield programs


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with everything that the mistakes need."""
    furnish(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def databases(postgres: Cluster, postgres_url: str, new_database: Callable[[], str]) -> dict[str, str]:
    """The URLs of a valid database, of the same one for a role without rights, and of two databases of other
    programs."""
    urls = {"database": new_database()}
    urls["powerless"] = with_another_role(postgres, urls["database"]).serving
    for name, table in (("foreign", "users"), ("yoyo", "_yoyo_migration")):
        with autocommitting(postgres_url) as owner:
            owner.execute(f"DROP DATABASE IF EXISTS mistaken_{name}")  # of an earlier fixture
            owner.execute(f"CREATE DATABASE mistaken_{name}")
        urls[name] = urlunsplit(urlsplit(postgres_url)._replace(path=f"/mistaken_{name}"))
        with autocommitting(urls[name]) as owner:
            owner.execute(f"CREATE TABLE {table} AS SELECT 'theirs' AS migration_id")
    return urls


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def environment(program: str, changed: Mapping[str, str | None]) -> dict[str, str | None]:
    """Variables with which the program works, until they are changed."""
    given: dict[str, str | None] = {"PATH": os.environ["PATH"], "HOME": "{place}"}
    if program != "edge":
        given |= {
            "FORGELET_API_DATABASE_URL": "postgresql://forgelet:hunter2@127.0.0.1:1/none",
            "FORGELET_API_DATA_DIR": "{place}/data",
            "FORGELET_API_PORT": "{free}",
        }
    return {**given, **changed}


@pytest.mark.parametrize("mistaken", MISTAKES, ids=str)
def test_a_mistake_is_one_sentence(
    mistaken: Mistaken, programs: Programs, place: Path, busy_port: int, databases: dict[str, str]
) -> None:
    with contextlib.chdir(place):
        command = own_command()
    filling = WORDS | {
        "nines": "9" * 5000,
        "command": command,
        "place": str(place),
        "port": str(busy_port),
        "free": str(free_port()),
        **databases,
    }

    def filled(text: str) -> str:
        for name, value in filling.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    changed = dict(mistaken.environment)
    if mistaken.file is not None:
        (place / "settings.toml").write_text(mistaken.file)
        changed["FORGELET_SETTINGS"] = "settings.toml"
    for program in mistaken.program.split():
        flags = [filled(flag) for flag in mistaken.flags.split()]
        given = environment(program, changed)
        ended = programs.run(
            MODULES[program],
            ["migrate"] if program == "commands" else flags,
            {name: filled(value) for name, value in given.items() if value is not None},
            folder=place,
            unprivileged=mistaken.unprivileged,
        )
        assert (ended.status, ended.errors) == (2, f"Error: {filled(mistaken.sentence)}\n"), program
        assert ended.output == ""
