"""The age of a response, and whether it may be reused now (RFC 9111 sections 4 and 5.2.1; RFC 5861)."""

import enum
import math
from typing import Final

import attrs
from multidict import CIMultiDictProxy

from common import http_fields
from storage_edge.rules import fields

Headers = CIMultiDictProxy[str]

#: Statuses whose responses may be kept by heuristics (RFC 9110 section 15.1). 206 is not stored here at all.
HEURISTIC_STATUSES: Final = frozenset({200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501})
NEGATIVE_STATUSES: Final = frozenset({404, 410})
#: The share of the time since Last-Modified for which a response is supposed to stay as it is (section 4.2.2).
HEURISTIC_FRACTION: Final = 0.1
HEURISTIC_MAX: Final = 86_400.0


@attrs.frozen
class Policy:
    """The rules that a response sets for its own reuse. All times are in seconds.

    `lifetime` counts from the response's generation. `validate` requires a successful validation before each reuse
    (`no-cache`). `strict` forbids every stale use (`must-revalidate`, `proxy-revalidate`, `s-maxage`, `no-cache`).
    `hidden_fields` must not be reused without validation (`no-cache="..."`).
    """

    lifetime: float = 0.0
    private: bool = False
    no_store: bool = False
    validate: bool = False
    strict: bool = False
    must_understand: bool = False
    shared_with_credentials: bool = False
    stale_while_revalidate: float = 0.0
    stale_if_error: float = 0.0
    hidden_fields: frozenset[str] = frozenset()


@attrs.frozen
class Times:
    """The times at which a response was requested and received, by our clock, and its Date and Age."""

    requested: float
    received: float
    date: float
    age: float

    def current_age(self, now: float) -> float:
        """Return the seconds since the response was generated or validated at the origin (section 4.2.3)."""
        apparent = max(0.0, self.received - self.date)
        corrected = self.age + (self.received - self.requested)
        return max(apparent, corrected) + max(0.0, now - self.received)


def times(headers: Headers, requested: float, received: float) -> Times:
    """Return `Times` of a response that was just received. Without a valid Date, its receipt counts (RFC 9110
    6.6.1)."""
    date = http_fields.parse_date(headers.get("Date"), received)
    return Times(
        requested=requested,
        received=received,
        date=received if date is None else date,
        age=float(fields.age_value(headers.getall("Age", []))),
    )


def policy(status: int, headers: Headers, received: float, negative_lifetime: float = 0.0) -> Policy:
    """Read CDN-Cache-Control of a response, or otherwise Cache-Control and Expires (RFC 9213 2.2, RFC 9111 5.2.2,
    5.3).

    `private` counts wherever it stands. `negative_lifetime` applies to 404 and 410 without a lifetime of their own.
    """
    cache_control = fields.directives(headers.getall("Cache-Control", []))
    for_us = fields.cdn_directives(headers.getall(fields.CDN_CACHE_CONTROL, []))
    valid = cache_control if for_us is None else for_us
    lifetime = _explicit_lifetime(valid, None if for_us is not None else headers, received)
    if lifetime is None:
        lifetime = _guessed_lifetime(
            status, headers, received, public="public" in valid, negative=negative_lifetime
        )
    hidden_fields = frozenset(name.lower() for name in fields.members([valid.get("no-cache") or ""]))
    validate = "no-cache" in valid and not hidden_fields
    return Policy(
        lifetime=lifetime,
        private="private" in cache_control or "private" in valid,
        no_store="no-store" in valid,
        validate=validate,
        strict=validate or any(name in valid for name in ("must-revalidate", "proxy-revalidate", "s-maxage")),
        must_understand="must-understand" in valid,
        shared_with_credentials=any(name in valid for name in ("public", "must-revalidate", "s-maxage")),
        stale_while_revalidate=_allowance(valid, "stale-while-revalidate"),
        stale_if_error=_allowance(valid, "stale-if-error"),
        hidden_fields=hidden_fields,
    )


def _explicit_lifetime(parsed: fields.Directives, headers: Headers | None, received: float) -> float | None:
    """Return the lifetime by section 4.2.1. An invalid lifetime makes the response stale."""
    for name in ("s-maxage", "max-age"):
        if name in parsed:
            return float(fields.seconds(parsed[name]) or 0)
    if headers is None or "Expires" not in headers:
        return None
    lines = headers.getall("Expires")
    expires = http_fields.parse_date(lines[0], received) if len(lines) == 1 else None
    date = http_fields.parse_date(headers.get("Date"), received)
    return 0.0 if expires is None else max(0.0, expires - (received if date is None else date))


def _guessed_lifetime(
    status: int, headers: Headers, received: float, *, public: bool, negative: float
) -> float:
    """Return the lifetime by section 4.2.2: a share of the age at receipt, if the status or `public` allows
    heuristics."""
    if status not in HEURISTIC_STATUSES and not public:
        return 0.0
    modified = http_fields.parse_date(headers.get("Last-Modified"), received)
    if modified is None:
        return negative if status in NEGATIVE_STATUSES else 0.0
    date = http_fields.parse_date(headers.get("Date"), received) or received
    return min(HEURISTIC_MAX, max(0.0, math.floor(date - modified) * HEURISTIC_FRACTION))


def _allowance(directives: fields.Directives, name: str) -> float:
    return float(fields.seconds(directives.get(name)) or 0)


class Reuse(enum.Enum):
    """The use of a stored response that was selected for a request."""

    USE = enum.auto()
    USE_AND_VALIDATE = enum.auto()
    VALIDATE = enum.auto()


@attrs.frozen
class RequestDirectives:
    """The client's directives (section 5.2.1) in seconds, or None without one."""

    max_age: int | None = None
    max_stale: int | None = None
    min_fresh: int | None = None
    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False


NO_DIRECTIVES = RequestDirectives()


#: Cache-Control lines of a request that are read. A head has room for a hundred, which would take 0.1 s.
MAX_LINES: Final = 4


def request_directives(cache_control: list[str]) -> RequestDirectives:
    """Read the first Cache-Control lines of a request. `Pragma` is deprecated and has no effect (5.4)."""
    if not cache_control:
        return NO_DIRECTIVES
    directives = fields.directives(cache_control[:MAX_LINES])
    stale = fields.seconds(directives.get("max-stale")) if directives.get("max-stale") else fields.MAX_SECONDS
    return RequestDirectives(
        max_age=fields.seconds(directives.get("max-age")),
        max_stale=stale if "max-stale" in directives else None,
        min_fresh=fields.seconds(directives.get("min-fresh")),
        no_cache="no-cache" in directives,
        no_store="no-store" in directives,
        only_if_cached="only-if-cached" in directives,
    )


def decide_reuse(policy: Policy, age: float, request: RequestDirectives = NO_DIRECTIVES) -> Reuse:
    """Decide for a public response with this policy and current age. A private one is always validated, elsewhere."""
    if (
        policy.validate
        or (policy.no_store and not policy.must_understand)
        or request.no_cache
        or request.no_store
    ):
        return Reuse.VALIDATE
    if request.max_age is not None and (age > request.max_age or request.max_age == 0):
        return Reuse.VALIDATE
    if policy.lifetime - age > (request.min_fresh or 0):
        return Reuse.USE
    stale_by = age - policy.lifetime
    if policy.strict or request.min_fresh is not None:
        return Reuse.VALIDATE
    if request.max_stale is not None and stale_by <= request.max_stale:
        return Reuse.USE
    if 0 <= stale_by < policy.stale_while_revalidate and request.max_age is None:
        return Reuse.USE_AND_VALIDATE
    return Reuse.VALIDATE


def may_use_on_error(policy: Policy, age: float, *, when_unreachable: float = 0.0) -> bool:
    """Return whether a stale response may replace an error of the origin (`stale-if-error`, RFC 5861 section 4).

    `when_unreachable` is the operator's allowance in seconds, for responses that do not forbid it (4.2.4).
    """
    return not policy.strict and age - policy.lifetime <= max(policy.stale_if_error, when_unreachable)
