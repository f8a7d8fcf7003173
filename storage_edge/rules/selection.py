"""Selection of a stored response for a request (`Vary`, RFC 9111 4.1), and conditional requests (RFC 9110 13, 9111
4.3)."""

import re
from collections.abc import Mapping

from multidict import CIMultiDictProxy

from common import http_fields
from storage_edge.rules import fields

#: The normalised value in the request of each field, by lower-case name; None if the field is absent.
Selection = tuple[tuple[str, str | None], ...]

_LIST_SPACE = re.compile(r"[ \t]*,[ \t]*")
#: Fields whose values are compared without regard to case.
_CASE_INSENSITIVE = frozenset({"accept", "accept-charset", "accept-encoding", "accept-language"})


def selection(vary: list[str], request: Mapping[str, str]) -> Selection:
    """Return the parts of the request that select a response with these Vary lines, in alphabetic order."""
    names = sorted({name.lower() for name in fields.members(vary)})
    return tuple((name, normalised(name, request.get(name))) for name in names)


def matches(selected: Selection, request: Mapping[str, str]) -> bool:
    """Return whether a response selected by `selected` also answers this request."""
    return all(normalised(name, request.get(name)) == value for name, value in selected)


def normalised(name: str, value: str | None) -> str | None:
    """Return a field value in a canonical spelling: without optional space, and lists by weight."""
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
    """Return request fields by lower-case name, with several lines of one field joined (RFC 9110 section 5.3)."""
    result: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower()
        result[key] = f"{result[key]}, {value}" if key in result else value
    return result


Headers = CIMultiDictProxy[str]


def is_not_modified(request: Headers, stored: Headers, received: float) -> bool:
    """Return whether a 304 answers this GET or HEAD, given a 200 with these fields (RFC 9110 13.2.2, RFC 9111
    4.3.2).

    If-None-Match decides alone if it is present. Without Last-Modified, Date is used, and then `received`.
    """
    if "If-None-Match" in request:
        return http_fields.has_tag(request.getall("If-None-Match"), stored.get("ETag"))
    since = http_fields.parse_date(request.get("If-Modified-Since"), received)
    if since is None:
        return False
    for name in ("Last-Modified", "Date"):
        modified = http_fields.parse_date(stored.get(name), received)
        if modified is not None:
            return modified <= since
    return received <= since


def conditions_for(stored: Headers) -> dict[str, str]:
    """Return the fields that ask the origin whether this stored response is still valid (RFC 9111 section 4.3.1)."""
    conditions = {}
    if "ETag" in stored:
        conditions["If-None-Match"] = stored["ETag"]
    if "Last-Modified" in stored:
        conditions["If-Modified-Since"] = stored["Last-Modified"]
    return conditions


def can_answer(status: int, *, conditional: bool) -> bool:
    """Return whether a GET or HEAD without a range and an upgrade can have this status as its final answer.

    304 belongs to conditions (RFC 9110 section 15.4.5), 206 to ranges (15.3.7), 1xx is not final, and other numbers
    are invalid (15). For a client that asked for something else, such an answer would be wrong.
    """
    return 200 <= status < 600 and status != 206 and (conditional or status != 304)


def is_about(stored: Headers, update: Headers) -> bool:
    """Return whether a 304 with these fields is about the stored response, the only one that was asked about (RFC
    9111 4.3.4).

    A strong entity tag decides alone. Otherwise they must share a validator, and none that both have may differ;
    entity tags are then compared weakly. A 304 without validators can only be about the response that was asked
    about.
    """
    if has_strong_tag(update):
        return stored.get("ETag") == update["ETag"]
    shared = [name for name in ("ETag", "Last-Modified") if name in update and name in stored]
    if any(_weak(stored[name]) != _weak(update[name]) for name in shared):
        return False
    return bool(shared) or not ("ETag" in update or "Last-Modified" in update)


def has_strong_tag(headers: Headers) -> bool:
    """Return whether there is a well-formed entity tag that is not weak (RFC 9110 section 8.8.3)."""
    tag = headers.get("ETag", "")
    return len(tag) >= 2 and tag[0] == tag[-1] == '"'


def _weak(validator: str) -> str:
    return validator.removeprefix("W/")


def head_matches(stored: Headers, length: int | None, head: Headers) -> bool:
    """Return whether a 200 to HEAD describes the stored response and so may freshen it (RFC 9111 4.3.5)."""
    for name in ("ETag", "Last-Modified"):
        if name in head and head[name] != stored.get(name):
            return False
    return "Content-Length" not in head or length is None or head["Content-Length"] == str(length)
