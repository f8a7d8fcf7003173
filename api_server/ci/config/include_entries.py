"""`include:` as people write it, in all its forms, as values."""

import base64
from typing import Any, Literal

from attrs import field, frozen

from api_server.ci.config import keywords
from api_server.ci.config.errors import ConfigError

_INTEGRITY = "sha256-"
_SHA256_BYTES = 32


@frozen
class Entry:
    """One thing to include; variables in its texts have yet to be replaced."""

    kind: Literal["local", "file", "remote"]
    #: Paths, or one URL.
    locations: tuple[str, ...]
    rules: list[Any] | None = None
    project: str = ""
    ref: str | None = None
    #: The SHA-256 that the file at the URL has to have.
    digest: bytes | None = field(default=None, repr=False)


def entries(value: Any) -> list[Entry]:
    """The string, hash and list forms of `include` as one list. Raises ConfigError."""
    items = value if isinstance(value, list) else [value]
    given = [item for item in items if item is not None]
    return [_entry({_kind(item): item} if isinstance(item, str) else item) for item in given]


def _kind(text: str) -> str:
    return "remote" if "://" in text else "local"


def _entry(item: Any) -> Entry:
    if errors := list(keywords.INCLUDE("include", item)):
        raise ConfigError(*errors)
    rules = item.get("rules")
    if item.get("project") is not None:
        files = item["file"] if isinstance(item["file"], list) else [item["file"]]
        if not files:
            raise ConfigError("include:file can't be blank")
        return Entry("file", tuple(files), rules, project=item["project"], ref=item.get("ref"))
    if item.get("remote") is not None:
        return Entry("remote", (item["remote"],), rules, digest=_digest(item.get("integrity")))
    return Entry("local", (item["local"],), rules)


def _digest(integrity: str | None) -> bytes | None:
    if integrity is None:
        return None
    if not integrity.startswith(_INTEGRITY):
        raise ConfigError(f"include:integrity should start with '{_INTEGRITY}'")
    try:
        digest = base64.b64decode(integrity.removeprefix(_INTEGRITY), validate=True)
    except ValueError:  # also of text that is no ASCII
        digest = b""
    if len(digest) != _SHA256_BYTES:
        raise ConfigError(f"include:integrity should be a SHA-256 in Base64 after '{_INTEGRITY}'")
    return digest
