"""What a passphrase protects in a backup: the secret key, and that nobody has changed the rest."""

import base64
import hmac
import os
from collections.abc import Mapping
from typing import Any

import attrs
import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from common.mistakes import Mistake

#: About a third of a second and 128 MiB for each try.
_COST = {"n": 2**17, "r": 8, "p": 1}
_MOST_MEMORY = 2**30
_SALT_BYTES = 16
_NONCE_BYTES = 12


@attrs.frozen
class Seal:
    """Two keys that are made from a passphrase: one encrypts, one authenticates."""

    #: How they were made, for whoever has the passphrase: as in the backup.
    derivation: Mapping[str, Any]
    _encrypting: bytes = attrs.field(repr=False)
    _authenticating: bytes = attrs.field(repr=False)

    @classmethod
    def new(cls, passphrase: str) -> "Seal":
        salt = base64.b64encode(os.urandom(_SALT_BYTES)).decode()
        return cls.again(passphrase, {"name": "scrypt", **_COST, "salt": salt})

    @classmethod
    def again(cls, passphrase: str, derivation: Mapping[str, Any]) -> "Seal":
        """As `derivation` in a backup says. Raises `Mistake` where that is nothing that we have written."""
        try:
            cost = {name: int(derivation[name]) for name in _COST}
            if derivation["name"] != "scrypt" or 128 * cost["n"] * cost["r"] * cost["p"] > _MOST_MEMORY:
                raise ValueError
            salt = base64.b64decode(derivation["salt"])
            keys = Scrypt(salt=salt, length=64, **cost).derive(passphrase.encode())
        except (KeyError, TypeError, ValueError):
            raise Mistake("The backup is damaged: it does not say how its key is sealed") from None
        return cls(derivation, keys[:32], keys[32:])

    def close(self, values: Mapping[str, Any]) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(self._encrypting).encrypt(nonce, orjson.dumps(values), None)
        return base64.b64encode(nonce + sealed).decode()

    def open(self, sealed: str) -> dict[str, Any]:
        """Raises `Mistake` where the passphrase is another one."""
        try:
            given = base64.b64decode(sealed)
            opened = AESGCM(self._encrypting).decrypt(given[:_NONCE_BYTES], given[_NONCE_BYTES:], None)
        except (InvalidTag, ValueError):
            raise Mistake(
                "The passphrase is not the one that the backup was made with (or its beginning is damaged)"
            ) from None
        return dict(orjson.loads(opened))

    def signature(self, *texts: bytes) -> str:
        """By which it is seen that `texts` are as whoever had the passphrase has written them."""
        mac = hmac.new(self._authenticating, digestmod="sha256")
        for text in texts:
            mac.update(len(text).to_bytes(8, "big") + text)
        return mac.hexdigest()

    def is_signature(self, given: str, *texts: bytes) -> bool:
        return hmac.compare_digest(given.encode(), self.signature(*texts).encode())
