"""Parsing of caching fields: Cache-Control, lists (RFC 9110, 9111), CDN-Cache-Control (RFC 9213), Cache-Status (RFC
9211)."""

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

#: Larger delta-seconds count as this (RFC 9111 section 1.2.2).
MAX_SECONDS: Final = 2**31

#: Directives by lower-case name, each with its argument without quotes, or None.
Directives = Mapping[str, str | None]

_DIRECTIVE = re.compile(
    r"""[\s,]*+(?:([!#$%&'*+.^_`|~0-9A-Za-z-]+)(?:=(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*)))?(?=\s*(?:,|$))|[^,]+|$)""",
    re.VERBOSE,
)


def directives(values: Iterable[str]) -> Directives:
    """Return all members of the given Cache-Control lines. The first of several with the same name counts (RFC 9111
    4.2.1).

    Invalid directives are left out.
    """
    parsed: dict[str, str | None] = {}
    for match in _DIRECTIVE.finditer(",".join(values)):
        name, quoted, unquoted = match.groups()
        if name is not None:
            parsed.setdefault(name.lower(), unquoted if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
    return parsed


def seconds(value: str | None) -> int | None:
    """Parse delta-seconds. Return None if they are invalid (RFC 9111 section 1.2.2)."""
    if value is None or not value.isascii() or not value.isdigit():
        return None
    return MAX_SECONDS if len(value) > 10 else min(int(value), MAX_SECONDS)


def members(values: Iterable[str]) -> list[str]:
    """Return the members of a list-based field without quoted strings (RFC 9110 section 5.6.1)."""
    return [stripped for value in values for member in value.split(",") if (stripped := member.strip())]


def age_value(values: Sequence[str]) -> int:
    """Return the Age of a response. The first member counts, and an invalid one is ignored (RFC 9111 5.1)."""
    return seconds(values[0].split(",", 1)[0].strip()) or 0 if values else 0


CDN_CACHE_CONTROL: Final = "CDN-Cache-Control"

_INTEGER_DIRECTIVES = frozenset({"max-age", "s-maxage", "stale-while-revalidate", "stale-if-error"})
_MEMBER = re.compile(
    r"""(?P<key>[a-z*][a-z0-9_.*-]*)
        (?:=(?:(?P<integer>-?\d{1,15})(?![\d.])|(?P<other>-?\d{1,12}\.\d{1,3}|"(?:[ !#-\[\]-~]|\\["\\])*"
            |[A-Za-z*][\w!#$%&'*+.^`|~:/-]*|:[A-Za-z0-9+/=]*:|\?[01])))?
        (?:;[ ]*[a-z*][a-z0-9_.*-]*(?:=[^;,\s]*)?)*
        [ \t]*(?:,[ \t]*(?=\S)|$)""",
    re.VERBOSE,
)


def cdn_directives(values: Sequence[str]) -> Directives | None:
    """Return the members of a valid, non-empty CDN-Cache-Control. Return None if Cache-Control has to be used
    instead.

    It is a structured field (RFC 9213 section 2.1): one syntax error invalidates all of it. A member whose value has
    the wrong type is left out.
    """
    text = ", ".join(value.strip(" \t") for value in values if value.strip(" \t"))
    parsed: dict[str, str | None] = {}
    position = 0
    while position < len(text):
        member = _MEMBER.match(text, position)
        if member is None:
            return None
        position = member.end()
        key = member["key"]
        parsed.pop(key, None)
        if key not in _INTEGER_DIRECTIVES:
            parsed[key] = member["integer"] or (member["other"] or "").strip('"') or None
        elif member["integer"] is not None:
            parsed[key] = member["integer"]
    return parsed if text else None


CACHE_NAME: Final = "forgelet-edge"


class Outcome(enum.Enum):
    """The way in which a request was answered. The value is the parameters of Cache-Status."""

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

    __hash__ = object.__hash__  # each hit is counted by it, and Enum's own hash is a Python function


def cache_status(outcome: Outcome, *, stored: bool = False, ttl: int | None = None) -> str:
    """Return the list member for this cache. `ttl` is the remaining freshness in seconds, negative if stale."""
    parts = [CACHE_NAME, outcome.value]
    if stored:
        parts.append("stored")
    if ttl is not None:
        parts.append(f"ttl={ttl}")
    return "; ".join(parts)
