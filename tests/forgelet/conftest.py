"""An empty place for restored backups, and fixtures that make restoring quick."""

from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from api_server.state import migrate
from forgelet.backup import form, restoring
from forgelet.backup.contents import Places
from forgelet.local.embedded_postgres import Cluster, autocommitting
from tests.support.database_roles import empty_database


@pytest.fixture(scope="module")
def cheap_passphrases() -> Iterator[None]:
    """Cheap encryption of backups: checking a passphrase usually takes a third of a second, on purpose."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(form._COST, "n", 2**10)
        yield


@pytest.fixture
def quick_schema(monkeypatch: pytest.MonkeyPatch, postgres: Cluster, template: str) -> None:
    """Copies of the tables of this version, since all migrations take seconds. Tables of other versions are still
    migrated."""

    def make(url: str, migrations: Collection[str]) -> None:
        if set(migrations) != migrate.known_migrations():
            migrate.make_older_schema(url, migrations)
            return
        name = urlsplit(url).path.removeprefix("/")
        with autocommitting(postgres.url()) as owner:
            owner.execute(f"DROP DATABASE {name} WITH (FORCE)")
            owner.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")

    monkeypatch.setattr(restoring, "make_older_schema", make)


@pytest.fixture
def empty(postgres: Cluster, tmp_path: Path) -> Iterator[Places]:
    """An empty database, and a folder that does not exist yet."""
    with empty_database(postgres) as name:
        yield Places(postgres.url(name), tmp_path / "restored")
