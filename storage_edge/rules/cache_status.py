"""The Cache-Status field: what this cache did with a request (RFC 9211)."""

import enum
from typing import Final

CACHE_NAME: Final = "forgelet-edge"


class Outcome(enum.Enum):
    """What happened; the value is the Cache-Status parameters that say so."""

    HIT = "hit"
    STALE = "hit; detail=stale"
    VALIDATED = "hit; fwd=stale; fwd-status=304"
    VALIDATED_FOR_USER = "hit; fwd=request; fwd-status=304"
    MISS = "fwd=uri-miss"
    REPLACED = "fwd=stale"
    COLLAPSED = "fwd=uri-miss; collapsed"
    REQUESTED = "fwd=request"
    BYPASS = "fwd=bypass"
    REFUSED = "detail=refused"
    ONLY_IF_CACHED = "detail=only-if-cached"
    FAILED = "fwd=uri-miss; detail=origin-failure"

    __hash__ = object.__hash__  # each hit is counted by it, and Enum's own is a call of Python's


def value(outcome: Outcome, *, stored: bool = False, ttl: int | None = None) -> str:
    """One list member for this cache; `ttl` is the remaining freshness in seconds, negative when stale."""
    parts = [CACHE_NAME, outcome.value]
    if stored:
        parts.append("stored")
    if ttl is not None:
        parts.append(f"ttl={ttl}")
    return "; ".join(parts)
