"""Secrets: tokens known by their digests, values sealed under the service's key, and that key in its file.

A key that does not match the database is refused before anything is sealed: no other key opens what one key
has sealed.
"""

import base64
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from api_server.state import disk
from api_server.state.backups import RESTORE_AGAIN, UNFINISHED_RESTORE
from api_server.state.driver import blocking_connection
from api_server.state.errors import UnsuitableDatabase

PERSONAL_ACCESS_TOKEN = "flpat-"
JOB_TOKEN = "fljob-"
STATIC_OBJECT_TOKEN = "flso-"
TRIGGER_TOKEN = "flptt-"
INVITATION_TOKEN = "flinv-"
CONFIRMATION_TOKEN = "flcon-"
PASSWORD_RESET_TOKEN = "flpwd-"
SIGN_IN_TOKEN = "flsin-"
RUNNER_TOKEN = "glrt-"  # the prefix that official runners expect

_NONCE_BYTES = 12


def new_token(prefix: str) -> str:
    """Return a token of 160 random bits in GitLab's alphabet."""
    return prefix + secrets.token_urlsafe(20)


def digest(token: str) -> bytes:
    """Return the stored form of a token: SHA-256, which suffices for so much randomness."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _scrypt(password: bytes, salt: bytes) -> bytes:
    return hashlib.scrypt(password, salt=salt, n=2**14, r=8, p=1, dklen=32)


@attrs.frozen
class Vault:
    """Encrypts with AES-256-GCM, derives tokens, and hashes passwords keyed with HMAC-SHA-256. Each use has
    its own key, derived from the service's key."""

    _key: bytes = attrs.field(repr=False)

    def encrypt(self, text: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self._derived("encryption")).encrypt(nonce, text.encode(), None)

    def decrypt(self, sealed: bytes) -> str:
        """Return the decrypted text. Raise ValueError if it was sealed under another key."""
        nonce, ciphertext = bytes(sealed[:_NONCE_BYTES]), bytes(sealed[_NONCE_BYTES:])
        try:
            return AESGCM(self._derived("encryption")).decrypt(nonce, ciphertext, None).decode()
        except InvalidTag:
            raise ValueError(
                "sealed under another secret key: restore the key that the data was made with"
            ) from None

    def derived_token(self, prefix: str, seed: bytes) -> str:
        """Return a token that can be shown again although only its seed is stored."""
        mac = hmac.digest(self._derived("tokens"), bytes(seed), "sha256")
        return prefix + base64.urlsafe_b64encode(mac[:20]).decode().rstrip("=")

    def hash_password(self, password: str) -> str:
        """Return the scrypt hash with a random salt, as `keyed$<salt>$<hash>` in hex. Guesses can be checked
        only with the service's key, so the database, or a log of its statements, is not enough to crack
        passwords."""
        salt = os.urandom(16)
        return f"keyed${salt.hex()}${_scrypt(self._keyed(password), salt).hex()}"

    def password_matches(self, password: str, hashed: str | None) -> bool:
        """Return whether the password matches. The call takes the same time if the account has no
        password."""
        kind, salt, expected = (hashed or f"keyed${'00' * 16}${'00' * 32}").split("$")
        # Hashes from before the key was included have the kind `scrypt`.
        secret = password.encode() if kind == "scrypt" else self._keyed(password)
        return hmac.compare_digest(_scrypt(secret, bytes.fromhex(salt)).hex(), expected)

    def check_value(self) -> bytes:
        """Return a value that identifies the key without revealing anything about it."""
        return self._derived("check value")

    def _keyed(self, password: str) -> bytes:
        return hmac.digest(self._derived("passwords"), password.encode(), "sha256")

    def _derived(self, purpose: str) -> bytes:
        return hmac.digest(self._key, purpose.encode(), "sha256")


#: The name of the key file in the data directory.
KEY_FILE = "secret_key"
_KEY_BYTES = 32

_CHECK = "SELECT digest FROM secret_key_check"
_KEEP_CHECK = "INSERT INTO secret_key_check VALUES (true, %s) ON CONFLICT DO NOTHING"
#: Each user has a token that is derived with the key, and the digest of that token.
_DERIVED = "SELECT static_object_seed, static_object_digest FROM users ORDER BY id LIMIT 1"


class UnusableKey(UnsuitableDatabase):
    """There is no key, or it does not belong to this database; the text says what to do."""


def open_vault(data_dir: Path) -> Vault:
    """Return the vault whose key is in `data_dir`. Raise `UnusableKey`."""
    path = data_dir / KEY_FILE
    try:
        text = path.read_text("ascii").strip()
    except FileNotFoundError:
        raise UnusableKey(f"The secret key {path} is missing: restore it from a backup") from None
    except OSError as problem:
        raise UnusableKey(f"The secret key {path} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * _KEY_BYTES}}}", text):
        raise UnusableKey(
            f"{path} is not a secret key, which is {2 * _KEY_BYTES} hexadecimal digits: restore it from a backup"
        )
    return Vault(bytes.fromhex(text))


def ensure_key(database_url: str, data_dir: Path) -> None:
    """Check that the key in `data_dir` belongs to the migrated database.

    Create a key if there is none and the database has no secrets. Raise `UnusableKey`, OSError and psycopg2's
    errors.
    """
    _check_is_whole(data_dir)
    with blocking_connection(database_url) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            if not (data_dir / KEY_FILE).exists() and not _has_secrets(cursor):
                _make_key(data_dir)
            vault = open_vault(data_dir)
            # A new database has no check value, nor has one from before there were check values.
            if _row(cursor, _CHECK) is None and _key_fits(vault, cursor):
                cursor.execute(_KEEP_CHECK, (vault.check_value(),))
            if not _key_fits(vault, cursor):  # another process may have been first
                raise _not_that_of_the_database(data_dir)


def check_key(cursor: Any, data_dir: Path) -> bool:
    """Return whether there is a key in `data_dir`; change nothing. Raise `UnusableKey` if the database that
    `cursor` reads has secrets and the key is missing or another one."""
    _check_is_whole(data_dir)
    if not (data_dir / KEY_FILE).exists() and not _has_secrets(cursor):
        return False
    if not _key_fits(open_vault(data_dir), cursor):
        raise _not_that_of_the_database(data_dir)
    return True


def _check_is_whole(data_dir: Path) -> None:
    """Raise `UnusableKey` if a restore was killed, so that its remains are not taken for a new instance."""
    if (data_dir / UNFINISHED_RESTORE).exists():
        raise UnusableKey(f"A restore into {data_dir} is under way, or was killed: {RESTORE_AGAIN}")


def _not_that_of_the_database(data_dir: Path) -> UnusableKey:
    return UnusableKey(
        f"The secret key {data_dir / KEY_FILE} is not the one that the database's secrets are encrypted with:"
        " restore that one from a backup, or check database_url and data_dir"
    )


def _has_secrets(cursor: Any) -> bool:
    return _row(cursor, _CHECK) is not None or _row(cursor, _DERIVED) is not None


def _key_fits(vault: Vault, cursor: Any) -> bool:
    """Return whether the key belongs to the database. A database without secrets matches every key."""
    row = _row(cursor, _CHECK)
    if row is not None:
        return hmac.compare_digest(bytes(row[0]), vault.check_value())
    derived = _row(cursor, _DERIVED)
    if derived is None:
        return True
    seed, expected = map(bytes, derived)
    return hmac.compare_digest(digest(vault.derived_token(STATIC_OBJECT_TOKEN, seed)), expected)


def _make_key(data_dir: Path) -> None:
    """Create the key file. If several processes start at the same time, one of them creates it; the file
    appears only when it is complete and on disk."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, unfinished = tempfile.mkstemp(prefix=f".{KEY_FILE}.", dir=data_dir)  # for the owner only
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_KEY_BYTES))
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(unfinished, data_dir / KEY_FILE)
    finally:
        Path(unfinished).unlink()
    disk.sync(data_dir)


def _row(cursor: Any, statement: str) -> Any:
    cursor.execute(statement)
    return cursor.fetchone()
