"""Secrets: tokens known only by their digests, and values that must come back, encrypted with the service's key."""

import base64
import hashlib
import hmac
import os
import secrets

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PERSONAL_ACCESS_TOKEN = "flpat-"
JOB_TOKEN = "fljob-"
STATIC_OBJECT_TOKEN = "flso-"
TRIGGER_TOKEN = "flptt-"
INVITATION_TOKEN = "flinv-"
CONFIRMATION_TOKEN = "flcon-"
RUNNER_TOKEN = "glrt-"  # the prefix that official runners look at

_NONCE_BYTES = 12


def new_token(prefix: str) -> str:
    """A token of 160 random bits in GitLab's alphabet."""
    return prefix + secrets.token_urlsafe(20)


def digest(token: str) -> bytes:
    """What is stored of a token: SHA-256, enough for a text with that much randomness."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _scrypt(password: bytes, salt: bytes) -> bytes:
    return hashlib.scrypt(password, salt=salt, n=2**14, r=8, p=1, dklen=32)


@attrs.frozen
class Vault:
    """Encrypts with AES-256-GCM, derives tokens and hashes passwords with HMAC-SHA-256, each under a key made from the
    service's."""

    _key: bytes = attrs.field(repr=False)

    def encrypt(self, text: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self._derived("encryption")).encrypt(nonce, text.encode(), None)

    def decrypt(self, sealed: bytes) -> str:
        """Raises ValueError where the text was sealed under another key."""
        nonce, ciphertext = bytes(sealed[:_NONCE_BYTES]), bytes(sealed[_NONCE_BYTES:])
        try:
            return AESGCM(self._derived("encryption")).decrypt(nonce, ciphertext, None).decode()
        except InvalidTag:
            raise ValueError(
                "sealed under another secret key: restore the key that the data was made with"
            ) from None

    def derived_token(self, prefix: str, seed: bytes) -> str:
        """A token that can be shown again and again though only its seed is stored."""
        mac = hmac.digest(self._derived("tokens"), bytes(seed), "sha256")
        return prefix + base64.urlsafe_b64encode(mac[:20]).decode().rstrip("=")

    def hash_password(self, password: str) -> str:
        """scrypt with a salt of its own, as `keyed$<salt>$<hash>` in hex. It can be tried out with the service's key
        only, so that nobody can who has the database, or its log with statements in it."""
        salt = os.urandom(16)
        return f"keyed${salt.hex()}${_scrypt(self._keyed(password), salt).hex()}"

    def password_matches(self, password: str, hashed: str | None) -> bool:
        """Takes the same time whether or not the account has a password."""
        kind, salt, expected = (hashed or f"keyed${'00' * 16}${'00' * 32}").split("$")
        # Those that were stored before there was a key in it.
        known = password.encode() if kind == "scrypt" else self._keyed(password)
        return hmac.compare_digest(_scrypt(known, bytes.fromhex(salt)).hex(), expected)

    def check_value(self) -> bytes:
        """By which a key is known again; it says nothing of the key."""
        return self._derived("check value")

    def _keyed(self, password: str) -> bytes:
        return hmac.digest(self._derived("passwords"), password.encode(), "sha256")

    def _derived(self, purpose: str) -> bytes:
        return hmac.digest(self._key, purpose.encode(), "sha256")
