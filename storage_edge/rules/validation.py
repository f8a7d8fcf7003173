"""Conditional requests, those of clients and those of the edge (RFC 9110 section 13, RFC 9111 4.3)."""

import re

from multidict import CIMultiDictProxy

from storage_edge.rules import fields

Headers = CIMultiDictProxy[str]

_ENTITY_TAG = re.compile(r'(?:W/)?"[^"]*"')


def is_not_modified(request: Headers, stored: Headers, received: float) -> bool:
    """Whether a 304 answers this GET or HEAD from a 200 with these fields (RFC 9110 13.2.2, RFC 9111 4.3.2).

    If-None-Match decides alone when it is there. Without Last-Modified, Date and then `received` stand in for
    it.
    """
    if "If-None-Match" in request:
        return _any_tag_matches(",".join(request.getall("If-None-Match")), stored.get("ETag"))
    since = fields.http_date(request.get("If-Modified-Since"), received)
    if since is None:
        return False
    for name in ("Last-Modified", "Date"):
        known = fields.http_date(stored.get(name), received)
        if known is not None:
            return known <= since
    return received <= since


def _any_tag_matches(wanted: str, current: str | None) -> bool:
    """Weak comparison (RFC 9110 section 8.8.3.2); what is no entity tag is compared as it stands."""
    if wanted.strip() in {"*", current}:
        return True
    if current is None:
        return False
    tags = _ENTITY_TAG.findall(wanted) or [wanted.strip()]
    opaque = current.removeprefix("W/").strip('"')
    return any(tag == current or tag.removeprefix("W/").strip('"') == opaque for tag in tags)


def conditions_for(stored: Headers) -> dict[str, str]:
    """The fields that ask the origin whether this stored response is still right (RFC 9111 section 4.3.1)."""
    conditions = {}
    if "ETag" in stored:
        conditions["If-None-Match"] = stored["ETag"]
    if "Last-Modified" in stored:
        conditions["If-Modified-Since"] = stored["Last-Modified"]
    return conditions


def head_matches(stored: Headers, length: int | None, head: Headers) -> bool:
    """Whether a 200 to HEAD describes the stored response and so may freshen it (RFC 9111 4.3.5)."""
    for name in ("ETag", "Last-Modified"):
        if name in head and head[name] != stored.get(name):
            return False
    return "Content-Length" not in head or length is None or head["Content-Length"] == str(length)


def range_applies(if_range: str | None, stored: Headers, received: float) -> bool:
    """Whether If-Range lets a Range take effect: strong comparison or exact date (RFC 9110 13.1.5)."""
    if if_range is None:
        return True
    if if_range.endswith('"'):
        return not if_range.startswith("W/") and if_range == stored.get("ETag")
    date = fields.http_date(if_range, received)
    return date is not None and date == fields.http_date(stored.get("Last-Modified"), received)
