"""The secret key: it is created once, checked against the database, and never replaced."""

import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg2
import pytest

from api_server.state import secrets
from api_server.state.secrets import UnusableKey, ensure_key, open_vault
from forgelet.local.embedded_postgres import autocommitting

KEY = "5e" * 32


@pytest.fixture
def url(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def _check_value(url: str) -> bytes:
    with autocommitting(url) as cursor:
        cursor.execute("SELECT digest FROM secret_key_check")
        return bytes(cursor.fetchone()[0])


def test_a_first_start_makes_key_and_check_value(url: str, data_dir: Path) -> None:
    ensure_key(url, data_dir)
    key = data_dir / "secret_key"
    assert re.fullmatch("[0-9a-f]{64}", key.read_text())
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert list(data_dir.iterdir()) == [key]
    assert _check_value(url) == open_vault(data_dir).check_value()
    assert bytes.fromhex(key.read_text()) not in _check_value(url)
    made = key.read_text()
    ensure_key(url, data_dir)
    assert key.read_text() == made


def test_it_is_on_disk_before_it_is_there(url: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, str]] = []
    fsync, link = os.fsync, os.link

    def note(call: str, path: Path) -> None:
        if path.is_relative_to(data_dir):  # the server that tests share has files to sync meanwhile
            done.append((call, str(path)))

    def synced(descriptor: int) -> None:
        note("fsync", Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    def linked(source: str, target: Path) -> None:
        note("link", Path(source))
        link(source, target)

    monkeypatch.setattr(secrets.os, "fsync", synced)
    monkeypatch.setattr(secrets.os, "link", linked)
    ensure_key(url, data_dir)
    unfinished = done[0][1]
    assert done == [("fsync", unfinished), ("link", unfinished), ("fsync", str(data_dir))]


@pytest.mark.parametrize(
    "content",
    [b"", b"5", b"5e" * 31, b"5e" * 33, b"g" * 64, b"\xff" * 64, KEY.encode() + b"\n" + KEY.encode()],
)
def test_what_is_no_key_is_refused(url: str, data_dir: Path, content: bytes) -> None:
    (data_dir / "secret_key").write_bytes(content)
    with pytest.raises(UnusableKey, match="is not a secret key, which is 64 hexadecimal digits: restore it"):
        ensure_key(url, data_dir)
    assert (data_dir / "secret_key").read_bytes() == content


def test_one_that_was_written_with_an_editor_is_a_key(url: str, data_dir: Path) -> None:
    (data_dir / "secret_key").write_text(f"{KEY.upper()}\n")
    ensure_key(url, data_dir)


def test_another_or_a_missing_one_is_refused(url: str, data_dir: Path) -> None:
    ensure_key(url, data_dir)
    key = data_dir / "secret_key"
    right = key.read_text()
    key.write_text(KEY)
    with pytest.raises(
        UnusableKey, match="is not the one that the database's secrets are encrypted with: restore"
    ):
        ensure_key(url, data_dir)
    key.unlink()
    with pytest.raises(UnusableKey, match="is missing: restore it from a backup"):
        ensure_key(url, data_dir)
    assert not key.exists(), "none is made in its place"
    key.write_text(right)
    ensure_key(url, data_dir)


@pytest.fixture
def from_before(url: str, data_dir: Path) -> Iterator[psycopg2.extensions.cursor]:
    """A database with a user whose secrets are encrypted with KEY, and without a check value."""
    (data_dir / "secret_key").write_text(KEY)
    vault, seed = open_vault(data_dir), b"\x01" * 32
    token = vault.derived_token(secrets.STATIC_OBJECT_TOKEN, seed)
    with autocommitting(url) as cursor:
        cursor.execute(
            """
            INSERT INTO users (username, name, email, static_object_seed, static_object_digest, created_at)
            VALUES ('alice', 'Alice', 'alice@example.org', %s, %s, '2026-01-01Z')
            """,
            (seed, secrets.digest(token)),
        )
        yield cursor


def test_an_installation_from_before_gets_its_check_value(
    url: str, data_dir: Path, from_before: psycopg2.extensions.cursor
) -> None:
    (data_dir / "secret_key").write_text("6f" * 32)
    with pytest.raises(UnusableKey, match="is not the one"):
        ensure_key(url, data_dir)
    (data_dir / "secret_key").unlink()
    with pytest.raises(UnusableKey, match="is missing"):
        ensure_key(url, data_dir)
    from_before.execute("SELECT count(*) FROM secret_key_check")
    assert from_before.fetchone() == (0,)
    (data_dir / "secret_key").write_text(KEY)
    ensure_key(url, data_dir)
    assert _check_value(url) == open_vault(data_dir).check_value()


def test_processes_that_start_at_the_same_moment_get_one_key(url: str, data_dir: Path) -> None:
    many = 8
    barrier, found, problems = threading.Barrier(many), [], []

    def start() -> None:
        barrier.wait()
        try:
            ensure_key(url, data_dir)
            found.append(open_vault(data_dir).check_value())
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=start) for _ in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert found == [_check_value(url)] * many
    assert [path.name for path in data_dir.iterdir()] == ["secret_key"]
