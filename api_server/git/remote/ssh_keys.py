"""SSH keys: the key pairs that the service creates for mirrors, and the host keys that users pin."""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence

import attrs
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from api_server.git.remote.access import known_hosts_name

MAX_HOST_KEYS = 10

_KEY_TYPE = re.compile(r"(?:ssh|ecdsa)-[a-z0-9-]+")
_HOST_NAMES = re.compile(r"[A-Za-z0-9|\[][^\s@]*")
_SHOWN_CHARACTERS = 60


@attrs.frozen
class KeyPair:
    """A key pair. `private` is in OpenSSH's format and is to be encrypted at rest; `public` is a line of
    authorized_keys."""

    private: str = attrs.field(repr=False)
    public: str


@attrs.frozen
class HostKey:
    """A pinned key: its known_hosts line and its fingerprint (`SHA256:...`, as `ssh-keygen -l` prints it)."""

    line: str
    fingerprint_sha256: str


class InvalidHostKeysError(ValueError):
    """A user has entered invalid host keys. The message is GitLab's."""


def make_key_pair(comment: str) -> KeyPair:
    """Return a new Ed25519 key pair (RFC 8709). The comment ends the public line."""
    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return KeyPair(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ).decode(),
        f"{public.decode()} {comment}",
    )


def parse_host_keys(entries: Iterable[str], host: str, port: int | None) -> tuple[HostKey, ...]:
    """Parse keys as users enter them: `ssh-ed25519 AAAA...` for the mirror's own host, or a known_hosts line.

    Spaces within the base64 part are pluses that a form has decoded. Raise `InvalidHostKeysError` if one key is
    invalid or there are too many.
    """
    texts = list(entries)
    if len(texts) > MAX_HOST_KEYS:
        raise InvalidHostKeysError(f"too many host keys (maximum is {MAX_HOST_KEYS})")
    keys = [(text, _host_key(text, known_hosts_name(host, port))) for text in texts]
    if bad := [_shortened(text) for text, key in keys if key is None]:
        raise InvalidHostKeysError(f"Invalid SSH host key(s): {', '.join(bad)}")
    return tuple(key for _, key in keys if key is not None)


def _host_key(text: str, own_name: str) -> HostKey | None:
    if not text.strip().isprintable():
        return None
    # Every single space counts: two of them may stand for `++`, and one at the end of the key for a plus.
    names, first, rest = _parts(text.strip("\r\n").lstrip(" ").split(" "))
    key_type = first if _KEY_TYPE.fullmatch(first) else ""
    if not key_type or not _HOST_NAMES.fullmatch(names or own_name):
        return None
    for end in range(1, len(rest) + 1):
        encoded = "+".join(rest[:end])
        if _is_public_key(key_type, encoded):
            digest = base64.b64encode(hashlib.sha256(base64.b64decode(encoded)).digest()).decode()
            return HostKey(f"{names or own_name} {key_type} {encoded}", f"SHA256:{digest.rstrip('=')}")
    return None


def _parts(fields: Sequence[str]) -> tuple[str, str, Sequence[str]]:
    """Return the host names (empty if only the key is given), the key type, and the words of key and comment."""
    if fields and _KEY_TYPE.fullmatch(fields[0]):
        return "", fields[0], fields[1:]
    return (fields[0], fields[1], fields[2:]) if len(fields) > 2 else ("", "", ())


def _is_public_key(key_type: str, encoded: str) -> bool:
    try:
        serialization.load_ssh_public_key(f"{key_type} {encoded}".encode())
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
