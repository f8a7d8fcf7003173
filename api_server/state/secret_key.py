"""The key that secrets are sealed under: a file beside the data, made once, and known to the database by a check value.

Whatever does not fit together is refused before anything is sealed: what one key has sealed no other opens.
"""

import hmac
import os
import re
import secrets
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg2

from api_server.state.backups import RESTORE_AGAIN, UNFINISHED_RESTORE
from api_server.state.migrate import CONNECT_SECONDS, UnsuitableDatabase
from api_server.state.secrets import STATIC_OBJECT_TOKEN, Vault, digest

#: In the data directory.
NAME = "secret_key"
_BYTES = 32

_CHECK = "SELECT digest FROM secret_key_check"
_KEEP_CHECK = "INSERT INTO secret_key_check VALUES (true, %s) ON CONFLICT DO NOTHING"
#: Each user has a token that is derived with the key, and its digest.
_DERIVED = "SELECT static_object_seed, static_object_digest FROM users ORDER BY id LIMIT 1"


class UnusableKey(UnsuitableDatabase):
    """There is no key, or it is not this database's; the text says what to do."""


def open_vault(data_dir: Path) -> Vault:
    """The vault whose key is in `data_dir`. Raises `UnusableKey`."""
    path = data_dir / NAME
    try:
        text = path.read_text("ascii").strip()
    except FileNotFoundError:
        raise UnusableKey(f"The secret key {path} is missing: restore it from a backup") from None
    except OSError as problem:
        raise UnusableKey(f"The secret key {path} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * _BYTES}}}", text):
        raise UnusableKey(
            f"{path} is not a secret key, which is {2 * _BYTES} hexadecimal digits: restore it from a backup"
        )
    return Vault(bytes.fromhex(text))


def ensure(database_url: str, data_dir: Path) -> None:
    """Makes sure that the key in `data_dir` is that of the database, which is migrated.

    A database without secrets gets a key where there is none. Raises `UnusableKey`, OSError and psycopg2's errors.
    """
    _check_is_whole(data_dir)
    with closing(psycopg2.connect(database_url, connect_timeout=CONNECT_SECONDS)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            if not (data_dir / NAME).exists() and not _has_secrets(cursor):
                _make(data_dir)
            vault = open_vault(data_dir)
            if _row(cursor, _CHECK) is None and _fits(
                vault, cursor
            ):  # of before there were check values, or new
                cursor.execute(_KEEP_CHECK, (vault.check_value(),))
            if not _fits(vault, cursor):  # another process may have been first
                raise _not_that_of_the_database(data_dir)


def check(cursor: Any, data_dir: Path) -> bool:
    """Whether there is a key in `data_dir` already; changes nothing. Raises `UnusableKey` where the database that
    `cursor` reads has secrets, and there is none, or another one."""
    _check_is_whole(data_dir)
    if not (data_dir / NAME).exists() and not _has_secrets(cursor):
        return False
    if not _fits(open_vault(data_dir), cursor):
        raise _not_that_of_the_database(data_dir)
    return True


def _check_is_whole(data_dir: Path) -> None:
    """An instance whose restore was killed is not begun anew as an empty one."""
    if (data_dir / UNFINISHED_RESTORE).exists():
        raise UnusableKey(f"A restore into {data_dir} is under way, or was killed: {RESTORE_AGAIN}")


def _not_that_of_the_database(data_dir: Path) -> UnusableKey:
    return UnusableKey(
        f"The secret key {data_dir / NAME} is not the one that the database's secrets are sealed under:"
        " restore that one from a backup, or check database_url and data_dir"
    )


def _has_secrets(cursor: Any) -> bool:
    return _row(cursor, _CHECK) is not None or _row(cursor, _DERIVED) is not None


def _fits(vault: Vault, cursor: Any) -> bool:
    """Whether the database goes with that key, as far as it can tell: one without secrets goes with any."""
    kept = _row(cursor, _CHECK)
    if kept is not None:
        return hmac.compare_digest(bytes(kept[0]), vault.check_value())
    derived = _row(cursor, _DERIVED)
    if derived is None:
        return True
    seed, expected = map(bytes, derived)
    return hmac.compare_digest(digest(vault.derived_token(STATIC_OBJECT_TOKEN, seed)), expected)


def _make(data_dir: Path) -> None:
    """Of processes that start at the same time one makes it; it is there when it is whole, and on disk."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, unfinished = tempfile.mkstemp(prefix=f".{NAME}.", dir=data_dir)  # for nobody else to read
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_BYTES))
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(unfinished, data_dir / NAME)
    finally:
        Path(unfinished).unlink()
    folder = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _row(cursor: Any, statement: str) -> Any:
    cursor.execute(statement)
    return cursor.fetchone()
