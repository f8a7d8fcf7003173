"""Rules for storing responses and their fields (RFC 9111 section 3), and the fields that clients see."""

import enum
from email.utils import formatdate
from typing import Final

import attrs
from aiohttp import hdrs
from multidict import CIMultiDict, CIMultiDictProxy

from storage_edge.rules import fields, selection
from storage_edge.rules.fields import CDN_CACHE_CONTROL
from storage_edge.rules.freshness import Policy

Headers = CIMultiDictProxy[str]

#: Fields that belong to one connection (RFC 9110 section 7.6.1) or to a proxy alone (RFC 9111 section 3.1).
HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authentication-info",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_DROPPED: Final = HOP_BY_HOP | {"set-cookie"}
#: The field by which the service names a response for purges. It is stored, but never passed on.
SURROGATE_KEY: Final = "Surrogate-Key"
#: Stored fields that a 304 or a HEAD does not replace, because they describe the stored bytes (section 3.2).
DESCRIBES_THE_BYTES: Final = frozenset(
    {"content-encoding", "content-length", "content-range", "content-type", "etag"}
)
#: Final statuses that this cache understands, for `must-understand` (section 5.2.2.3).
UNDERSTOOD: Final = frozenset({200, 203, 204, 300, 301, 302, 303, 307, 308, 404, 405, 410, 414, 501})
#: Refusals depend on the caller, and the answer to a partial request is not the object.
NEVER_STORED: Final = frozenset({206, 304, 401, 403, 407, 416, 429})


class Storage(enum.Enum):
    """The permitted storage of a response: none, for everybody, or for reuse only after each user's own validation."""

    NONE = enum.auto()
    SHARED = enum.auto()
    PRIVATE = enum.auto()


@attrs.frozen
class RequestFacts:
    """The properties of the forwarded request that decide about storing: a user's token, credentials, `no-store`."""

    has_token: bool = False
    has_credentials: bool = False
    no_store: bool = False


def decide_storage(request: RequestFacts, status: int, headers: Headers, policy: Policy) -> Storage:
    """Apply sections 3, 3.5 and 5.2.2 to the response to a GET.

    In addition to the RFC, a `private` response to a request with a user's token is stored if it has a strong
    validator, for reuse only after the origin has validated it for the same user (see `freshness.decide_reuse`). A
    response other than 200 to a request with a token is never stored, because it may be about that token alone.
    """
    if status < 200 or status in NEVER_STORED or request.no_store or _is_sign_in(status, headers):
        return Storage.NONE
    if policy.must_understand:
        if status not in UNDERSTOOD:
            return Storage.NONE
    elif policy.no_store:
        return Storage.NONE
    if "*" in fields.members(headers.getall("Vary", [])):
        return Storage.NONE
    if policy.private:
        keep = request.has_token and status == 200 and selection.has_strong_tag(headers)
        return Storage.PRIVATE if keep else Storage.NONE
    if request.has_token and status != 200:
        return Storage.NONE
    if request.has_credentials and not policy.shared_with_credentials:
        return Storage.NONE
    can_be_validated = status < 500 and ("ETag" in headers or "Last-Modified" in headers)
    return Storage.SHARED if policy.lifetime > 0 or can_be_validated else Storage.NONE


def may_displace(status: int, stored_status: int, *, stored_is_private: bool) -> bool:
    """Return whether a response that may be stored replaces one that the same requests select.

    A 2xx always does, because it is for everybody who may use it. Another response does not replace a private object:
    it was made for a caller without a token (see `decide_storage`), who could never get the object. An error of
    the origin replaces only another error.
    """
    if 200 <= status < 300:
        return True
    return not stored_is_private and (status < 500 or stored_status >= 500)


def end_to_end(headers: Headers) -> CIMultiDict[str]:
    """Return the fields of a response that may be stored, without cookies (RFC 9110 7.6.1, RFC 9111 3.1)."""
    dropped = _DROPPED
    if "Connection" in headers:
        dropped |= {name.lower() for name in fields.members(headers.getall("Connection"))}
    return CIMultiDict([(name, value) for name, value in headers.items() if name.lower() not in dropped])


def freshened(stored: Headers, update: Headers) -> CIMultiDict[str]:
    """Return stored fields after a 304 or HEAD: the update's fields replace theirs, except those that describe the
    stored bytes (section 3.2, 4.3.4)."""
    new = end_to_end(update)
    for name in DESCRIBES_THE_BYTES:
        new.popall(name, None)
    merged = CIMultiDict((name, value) for name, value in stored.items() if name not in new and name != "Age")
    merged.extend(new)
    return merged


def surrogate_keys(headers: Headers) -> frozenset[str]:
    """Return the names by which the origin may purge this response (`Surrogate-Key`, separated by spaces)."""
    return frozenset(key for value in headers.getall(SURROGATE_KEY, []) for key in value.split())


def _is_sign_in(status: int, headers: Headers) -> bool:
    """Return whether GitLab has redirected a refused user to its sign-in page."""
    return 300 <= status < 400 and "/users/sign_in" in headers.get("Location", "")


#: The fields of every answer, even of errors: any site may read public files, and users' files harm no site.
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
#: The policy that prevents users' files from running as part of a site, unless the origin itself allows it.
CONTENT_SECURITY_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
SERVER: Final = "forgelet-edge"


def for_clients(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Return the origin's end-to-end fields for clients, without Age, Cache-Status and length."""
    fields = end_to_end(headers)
    for name in (SURROGATE_KEY, hdrs.AGE, hdrs.CONTENT_LENGTH, "X-Request-Id"):
        fields.popall(name, None)
    fields.update(ALWAYS)
    fields.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
    fields.setdefault(hdrs.SERVER, SERVER)
    return fields


def head_of_200(fields: CIMultiDict[str], length: int, received: float) -> bytes:
    """Return status line and fields of a 200 with a body of `length` bytes, to which more fields can be appended.

    `received` replaces a missing Date (RFC 9110 section 6.6.1). Raise `ValueError` for a field that would not stay
    on one line.
    """
    headers = CIMultiDict(fields)
    headers.setdefault(hdrs.DATE, formatdate(received, usegmt=True))
    if length:
        headers.setdefault(hdrs.CONTENT_TYPE, "application/octet-stream")
    headers[hdrs.ACCEPT_RANGES] = "bytes"
    headers[hdrs.CONTENT_LENGTH] = str(length)
    lines = [f"{name}: {value}" for name, value in headers.items()]
    if any(sign in line for line in lines for sign in "\r\n\0"):
        raise ValueError("A stored field holds a line break or NUL.")
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, ""]).encode()


def keep_from_other_caches(fields: CIMultiDict[str]) -> None:
    """Forbid caches behind the edge to keep an answer whose URL has a user's token."""
    fields[hdrs.CACHE_CONTROL] = "private, no-cache"
    fields.popall(CDN_CACHE_CONTROL, None)
