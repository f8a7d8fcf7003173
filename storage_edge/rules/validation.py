"""Conditional requests, those of clients and those of the edge (RFC 9110 section 13, RFC 9111 4.3)."""

from multidict import CIMultiDictProxy

from common import http_fields

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


def answers(status: int, *, conditional: bool) -> bool:
    """Whether a GET or HEAD that asks for no range and no upgrade can have this status as its final answer.

    304 belongs to conditions (RFC 9110 section 15.4.5), 206 to ranges (15.3.7), 1xx is not final, and the rest is none
    (15). To a client that asked for something else such an answer would say what is not so.
    """
    return 200 <= status < 600 and status != 206 and (conditional or status != 304)


def selects(stored: Headers, update: Headers) -> bool:
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
