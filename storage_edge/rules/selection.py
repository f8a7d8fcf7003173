"""Which stored response answers a request (`Vary`, RFC 9111 4.1), and conditional requests (RFC 9110 13, 9111 4.3)."""

import re
from collections.abc import Mapping

from multidict import CIMultiDictProxy

from common import http_fields
from storage_edge.rules import fields

#: Field name in lower case -> its normalised value in the request, None when absent.
Selection = tuple[tuple[str, str | None], ...]

_LIST_SPACE = re.compile(r"[ \t]*,[ \t]*")
#: Fields whose values are compared without regard to case.
_CASE_INSENSITIVE = frozenset({"accept", "accept-charset", "accept-encoding", "accept-language"})


def selection(vary: list[str], request: Mapping[str, str]) -> Selection:
    """What of the request selects a response with these Vary lines; fields in alphabetic order."""
    names = sorted({name.lower() for name in fields.members(vary)})
    return tuple((name, normalised(name, request.get(name))) for name in names)


def matches(selected: Selection, request: Mapping[str, str]) -> bool:
    """Whether a response selected by `selected` answers this request as well."""
    return all(normalised(name, request.get(name)) == value for name, value in selected)


def normalised(name: str, value: str | None) -> str | None:
    """A field value in the spelling that its equals share: no optional space, lists by weight."""
    if value is None:
        return None
    members = [member for member in _LIST_SPACE.split(value.strip(" \t")) if member]
    if name in _CASE_INSENSITIVE:
        members = sorted((member.lower().replace(" ", "") for member in members), key=_by_weight)
    return ",".join(members)


def _by_weight(member: str) -> tuple[float, str]:
    value, _, weight = member.partition(";q=")
    try:
        return (-float(weight or 1), value)
    except ValueError:
        return (0.0, value)


def combined(headers: CIMultiDictProxy[str]) -> dict[str, str]:
    """Request fields by lower-case name, several lines of one field joined (RFC 9110 section 5.3)."""
    joined: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower()
        joined[key] = f"{joined[key]}, {value}" if key in joined else value
    return joined


Headers = CIMultiDictProxy[str]


def is_not_modified(request: Headers, stored: Headers, received: float) -> bool:
    """Whether a 304 answers this GET or HEAD from a 200 with these fields (RFC 9110 13.2.2, RFC 9111 4.3.2).

    If-None-Match decides alone when it is there. Without Last-Modified, Date and then `received` stand in for it.
    """
    if "If-None-Match" in request:
        return http_fields.has_tag(request.getall("If-None-Match"), stored.get("ETag"))
    since = http_fields.parse_date(request.get("If-Modified-Since"), received)
    if since is None:
        return False
    for name in ("Last-Modified", "Date"):
        known = http_fields.parse_date(stored.get(name), received)
        if known is not None:
            return known <= since
    return received <= since


def conditions_for(stored: Headers) -> dict[str, str]:
    """The fields that ask the origin whether this stored response is still right (RFC 9111 section 4.3.1)."""
    asked = {}
    if "ETag" in stored:
        asked["If-None-Match"] = stored["ETag"]
    if "Last-Modified" in stored:
        asked["If-Modified-Since"] = stored["Last-Modified"]
    return asked


def can_answer(status: int, *, conditional: bool) -> bool:
    """Whether a GET or HEAD that asks for no range and no upgrade can have this status as its final answer.

    304 belongs to conditions (RFC 9110 section 15.4.5), 206 to ranges (15.3.7), 1xx is not final, and the rest is none
    (15). To a client that asked for something else such an answer would say what is not so.
    """
    return 200 <= status < 600 and status != 206 and (conditional or status != 304)


def is_about(stored: Headers, update: Headers) -> bool:
    """Whether a 304 with these fields is about the stored response, of which alone was asked (RFC 9111 4.3.4).

    A strong entity tag decides alone. Otherwise no validator that both have may differ, and they share one; entity
    tags are compared weakly then. A 304 without any validator can only be about what was asked.
    """
    if has_strong_tag(update):
        return stored.get("ETag") == update["ETag"]
    shared = [name for name in ("ETag", "Last-Modified") if name in update and name in stored]
    if any(_weak(stored[name]) != _weak(update[name]) for name in shared):
        return False
    return bool(shared) or not ("ETag" in update or "Last-Modified" in update)


def has_strong_tag(headers: Headers) -> bool:
    """A well-formed entity tag that is not weak (RFC 9110 section 8.8.3)."""
    tag = headers.get("ETag", "")
    return len(tag) >= 2 and tag[0] == tag[-1] == '"'


def _weak(validator: str) -> str:
    return validator.removeprefix("W/")


def head_matches(stored: Headers, length: int | None, head: Headers) -> bool:
    """Whether a 200 to HEAD describes the stored response and so may freshen it (RFC 9111 4.3.5)."""
    for name in ("ETag", "Last-Modified"):
        if name in head and head[name] != stored.get(name):
            return False
    return "Content-Length" not in head or length is None or head["Content-Length"] == str(length)
