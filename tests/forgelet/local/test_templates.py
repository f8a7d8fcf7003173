"""Templates of databases: what a copy has in it, when another is made, and that nothing needs them."""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg2
import pytest

from api_server.state.migrate import planned
from forgelet.local import embedded_postgres, throwaway_data
from forgelet.local.data_directory import DataDirectory


@contextmanager
def started(folder: Path) -> Iterator[str]:
    """The URL of the database that a server for tests has in `folder`."""
    data = DataDirectory(folder)
    with data.opened():
        cluster = throwaway_data.templated_cluster(data)
        try:
            cluster.start(data.log("postgres"))
            yield cluster.url()
        finally:
            cluster.stop()


def setting(url: str, name: str) -> str:
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW {name}")
        return str(cursor.fetchone()[0])


def test_copies_are_migrated_and_separate(place: Path, caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    kept = caches / "forgelet/clusters"
    with started(place / "first") as url:
        assert planned(url) == []
        assert [setting(url, name) for name in ("fsync", "synchronous_commit", "full_page_writes")] == [
            "off"
        ] * 3
        made = {one for one in kept.iterdir() if one.is_dir()}
        assert len(made) == 1
        with started(place / "second") as other, closing(psycopg2.connect(url)) as connection:
            assert planned(other) == []
            assert not (place / "second/logs/initdb.log").exists()
            connection.cursor().execute("CREATE TABLE of_the_first ()")
            connection.commit()
            with closing(psycopg2.connect(other)) as elsewhere, elsewhere.cursor() as cursor:
                cursor.execute("SELECT to_regclass('of_the_first')")
                assert cursor.fetchone() == (None,)
    assert {one for one in kept.iterdir() if one.is_dir()} == made
    assert (kept.stat().st_mode | (kept / "postgres-password").stat().st_mode) & 0o077 == 0


def test_a_broken_template_and_a_lost_password_are_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a loss of power leaves them: no start may fail for ever."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "caches"))
    kept = place / "caches/forgelet/clusters"
    kept.mkdir(parents=True)
    (kept / "postgres-password").touch(mode=0o600)
    with DataDirectory(place / "named").opened():
        template = throwaway_data.templated_cluster(DataDirectory(place / "named"))._template
    assert isinstance(template, throwaway_data.Template)
    password = (kept / "postgres-password").read_text()
    assert password
    (template.path / "global").mkdir(parents=True)
    shutil.chown(template.path, (place / "named/postgres").owner())
    template.path.chmod(0o700)
    with started(place / "data") as url:
        assert setting(url, "fsync") == "off"
    assert (place / "data/logs/initdb.log").exists()
    assert not template.path.exists()
    assert (kept / "postgres-password").read_text() == password


def test_another_accounts_templates_are_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They say what PostgreSQL is to run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "caches"))
    kept = place / "caches/forgelet/clusters"
    kept.mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: kept.stat().st_uid + 1)
    data = DataDirectory(place / "data")
    with data.opened():
        monkeypatch.setattr(embedded_postgres, "cluster_of", lambda *_, **given: given)
        assert throwaway_data.templated_cluster(data)["template"] is None  # type: ignore[index]
    assert list(kept.iterdir()) == []


def test_templates_are_few(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}").mkdir()
        os.utime(tmp_path / f"{number}", (number, number))
    (tmp_path / "lock").touch()
    throwaway_data.keep_few(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {"3", "4", "5", "lock"}


def test_without_a_cache_it_is_initdb(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    with started(place / "data") as url:
        assert setting(url, "fsync") == "off"
        assert (place / "data/logs/initdb.log").exists()
