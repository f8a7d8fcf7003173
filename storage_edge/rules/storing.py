"""Whether a response may be kept, and what of it (RFC 9111 section 3)."""

import enum
from typing import Final

import attrs
from multidict import CIMultiDict, CIMultiDictProxy

from storage_edge.rules import fields, validation
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
#: What the service tells the edge alone; kept, never passed on.
SURROGATE_KEY: Final = "Surrogate-Key"
#: Stored fields that a 304 or a HEAD does not replace: they describe the stored bytes (section 3.2).
DESCRIBES_THE_BYTES: Final = frozenset(
    {"content-encoding", "content-length", "content-range", "content-type", "etag"}
)
#: Final status codes that this cache understands, for `must-understand` (section 5.2.2.3).
UNDERSTOOD: Final = frozenset({200, 203, 204, 300, 301, 302, 303, 307, 308, 404, 405, 410, 414, 501})
#: Refusals depend on who asks; an answer to a partial request is not the object.
NEVER_STORED: Final = frozenset({206, 304, 401, 403, 407, 416, 429})


class Storage(enum.Enum):
    """Where a response may go: nowhere, for everybody, or only for reuse after each user's own validation."""

    NONE = enum.auto()
    SHARED = enum.auto()
    PRIVATE = enum.auto()


@attrs.frozen
class RequestFacts:
    """What of the forwarded request decides about storing: a user's token, credentials, `no-store`."""

    has_token: bool = False
    has_credentials: bool = False
    no_store: bool = False


def decide(request: RequestFacts, status: int, headers: Headers, policy: Policy) -> Storage:
    """Section 3, 3.5 and 5.2.2 for the response to a GET.

    Beyond the RFC: a `private` response to a request with a user's token is kept when it has a strong
    validator, for reuse only after the origin has validated it for the very user who asks (see
    `reuse.decide`). An answer other than 200 that a token had part in is never kept, because it may be about
    that token alone.
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
        keep = request.has_token and status == 200 and validation.has_strong_tag(headers)
        return Storage.PRIVATE if keep else Storage.NONE
    if request.has_token and status != 200:
        return Storage.NONE
    if request.has_credentials and not policy.shared_with_credentials:
        return Storage.NONE
    can_be_validated = status < 500 and ("ETag" in headers or "Last-Modified" in headers)
    return Storage.SHARED if policy.lifetime > 0 or can_be_validated else Storage.NONE


def may_displace(status: int, stored_status: int, *, stored_is_private: bool) -> bool:
    """Whether a response that may be stored takes the place of one that the same requests select.

    A 2xx always does: it was made for whoever may use it. Another answer to a private object was made for
    somebody without a token (see `decide`), whom the object was never for. An error is about the origin.
    """
    if 200 <= status < 300:
        return True
    return not stored_is_private and (status < 500 or stored_status >= 500)


def end_to_end(headers: Headers) -> CIMultiDict[str]:
    """The fields of a response that may be stored, without cookies (RFC 9110 7.6.1, RFC 9111 3.1)."""
    dropped = _DROPPED
    if "Connection" in headers:
        dropped |= {name.lower() for name in fields.members(headers.getall("Connection"))}
    return CIMultiDict([(name, value) for name, value in headers.items() if name.lower() not in dropped])


def freshened(stored: Headers, update: Headers) -> CIMultiDict[str]:
    """Stored fields after a 304 or HEAD for them: all fields of the update replace theirs, but for those that
    describe the stored bytes (section 3.2, 4.3.4).
    """
    new = end_to_end(update)
    for name in DESCRIBES_THE_BYTES:
        new.popall(name, None)
    merged = CIMultiDict((name, value) for name, value in stored.items() if name not in new and name != "Age")
    merged.extend(new)
    return merged


def surrogate_keys(headers: Headers) -> frozenset[str]:
    """The names under which the origin may purge this response (`Surrogate-Key`, separated by spaces)."""
    return frozenset(key for value in headers.getall(SURROGATE_KEY, []) for key in value.split())


def _is_sign_in(status: int, headers: Headers) -> bool:
    """A real GitLab answers a refused user with a redirect to its sign-in page."""
    return 300 <= status < 400 and "/users/sign_in" in headers.get("Location", "")
