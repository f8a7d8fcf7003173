"""What clients see of a response's fields, and the fields that every answer of the edge has."""

from email.utils import formatdate
from typing import Final

from aiohttp import hdrs
from multidict import CIMultiDict, CIMultiDictProxy

from storage_edge.rules import storing, targeted

#: On every answer, errors too: any site may read public files, and none is harmed by what users put there.
ALWAYS: Final = {
    hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: "*",
    hdrs.ACCESS_CONTROL_EXPOSE_HEADERS: (
        "Accept-Ranges, Age, Cache-Status, Content-Disposition, Content-Length, "
        "Content-Range, ETag, Last-Modified"
    ),
    "Cross-Origin-Resource-Policy": "cross-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
#: Users' files never run as part of a site, unless the origin itself says what they may do.
CONTENT_SECURITY_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
SERVER: Final = "forgelet-edge"


def for_clients(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """End-to-end fields of the origin as clients get them, but for Age, Cache-Status and length."""
    fields = storing.end_to_end(headers)
    for name in (storing.SURROGATE_KEY, hdrs.AGE, hdrs.CONTENT_LENGTH, "X-Request-Id"):
        fields.popall(name, None)
    fields.update(ALWAYS)
    fields.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
    fields.setdefault(hdrs.SERVER, SERVER)
    return fields


def head(fields: CIMultiDict[str], length: int, received: float) -> bytes:
    """Status line and fields of a 200 with a body of `length` bytes, open for more fields at the end.

    `received` stands in for a missing Date (RFC 9110 section 6.6.1). Raises ValueError for a field that would
    not stay one line.
    """
    whole = CIMultiDict(fields)
    whole.setdefault(hdrs.DATE, formatdate(received, usegmt=True))
    if length:
        whole.setdefault(hdrs.CONTENT_TYPE, "application/octet-stream")
    whole[hdrs.ACCEPT_RANGES] = "bytes"
    whole[hdrs.CONTENT_LENGTH] = str(length)
    lines = [f"{name}: {value}" for name, value in whole.items()]
    if any(sign in line for line in lines for sign in "\r\n\0"):
        raise ValueError("A stored field holds a line break or NUL.")
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, ""]).encode()


def keep_from_other_caches(fields: CIMultiDict[str]) -> None:
    """The URL held a user's token: no cache behind the edge may keep the answer for others."""
    fields[hdrs.CACHE_CONTROL] = "private, no-cache"
    fields.popall(targeted.FIELD, None)
