"""Content codings: which clients accept gzip, which bodies are worth it, and coded representations (RFC 9110 8.4,
12.5.3).

A coded representation is a different one: it has an entity tag of its own, and both say `Vary: Accept-Encoding`.
"""

import functools
import zlib
from collections.abc import Sequence
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

from storage_edge.rules import fields

Headers = CIMultiDictProxy[str]

LEVEL: Final = 6
#: A strong tag promises the same bytes, but another release of zlib may produce others.
SUFFIX: Final = f"-gzip{LEVEL}.{zlib.ZLIB_RUNTIME_VERSION}"
_TEXT: Final = frozenset(
    {
        "application/ecmascript",
        "application/javascript",
        "application/json",
        "application/toml",
        "application/xml",
        "application/yaml",
        "image/svg+xml",
    }
)
_TEXT_SUFFIXES: Final = ("+json", "+xml")
#: These fields are about the bytes without coding.
_DIGESTS: Final = ("Content-MD5", "Content-Digest", "Repr-Digest", "Digest")


def takes_gzip(lines: Sequence[str]) -> bool:
    """Return whether these lines of Accept-Encoding prefer gzip to no coding, or like both equally (section 12.5.3)."""
    return bool(lines) and _takes_gzip(lines[0] if len(lines) == 1 else ",".join(lines))


@functools.lru_cache(maxsize=1024)
def _takes_gzip(value: str) -> bool:
    weights: dict[str, float] = {}
    for member in value.split(","):
        name, _, parameters = member.partition(";")
        weights.setdefault(name.strip().lower(), _weight(parameters))
    gzip = weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0)))
    return gzip > 0 and gzip >= weights.get("identity", 0.0)


def _weight(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name.strip().lower() != "q":
        return 1.0
    try:
        return min(max(float(value.strip()), 0.0), 1.0)
    except ValueError:
        return 0.0


def is_text(status: int, headers: Headers) -> bool:
    """Return whether a response has a body that a coding makes smaller and that may be changed (RFC 9111 5.2.2.6)."""
    if status != 200 or "Content-Encoding" in headers or any(name in headers for name in _DIGESTS):
        return False
    media_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if not (media_type.startswith("text/") or media_type in _TEXT or media_type.endswith(_TEXT_SUFFIXES)):
        return False
    return "no-transform" not in fields.directives(headers.getall("Cache-Control", []))


def varying(headers: Headers) -> CIMultiDict[str]:
    """Return the fields of a response that also has a coded representation."""
    new = CIMultiDict(headers)
    members = fields.members(headers.getall("Vary", []))
    if not {"accept-encoding", "*"} & {name.lower() for name in members}:
        new["Vary"] = ", ".join([*members, "Accept-Encoding"])
    return new


def coded(headers: Headers) -> CIMultiDict[str]:
    """Return the fields of the coded representation."""
    new = varying(headers)
    new["Content-Encoding"] = "gzip"
    new.popall("Content-Length", None)
    if "ETag" in new:
        new["ETag"] = tag(new["ETag"])
    return new


def tag(plain: str) -> str:
    """Return the entity tag of the coded representation, as strong or weak as the original (section 8.8.3)."""
    return f'{plain[:-1]}{SUFFIX}"' if plain.endswith('"') and len(plain) > 1 else plain


def compress(data: bytes) -> bytes:
    """Return the compressed data, the same bytes each time."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()
