"""Conditional requests, those of clients and those of the edge (RFC 9110 section 13, RFC 9111 4.3)."""

from multidict import CIMultiDictProxy

from common import conditions, http_dates

Headers = CIMultiDictProxy[str]


def is_not_modified(request: Headers, stored: Headers, received: float) -> bool:
    """Whether a 304 answers this GET or HEAD from a 200 with these fields (RFC 9110 13.2.2, RFC 9111 4.3.2).

    If-None-Match decides alone when it is there. Without Last-Modified, Date and then `received` stand in for it.
    """
    if "If-None-Match" in request:
        return conditions.has_tag(request.getall("If-None-Match"), stored.get("ETag"))
    since = http_dates.parse(request.get("If-Modified-Since"), received)
    if since is None:
        return False
    for name in ("Last-Modified", "Date"):
        known = http_dates.parse(stored.get(name), received)
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


def head_matches(stored: Headers, length: int | None, head: Headers) -> bool:
    """Whether a 200 to HEAD describes the stored response and so may freshen it (RFC 9111 4.3.5)."""
    for name in ("ETag", "Last-Modified"):
        if name in head and head[name] != stored.get(name):
            return False
    return "Content-Length" not in head or length is None or head["Content-Length"] == str(length)
