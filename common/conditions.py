"""Conditional requests: what a client has already, and what is still the same (RFC 9110 section 13)."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

#: Fields in lower case that describe a body, which a 304 does not have (section 15.4.5).
CONTENT_FIELDS: Final = ("content-encoding", "content-length", "content-range", "content-type")

#: Entity tags that are looked at of a request; whoever names more may be sent what she has.
MOST_TAGS: Final = 100

_ENTITY_TAG = re.compile(r'(?:W/)?"[^"]*"')


def has_tag(if_none_match: Sequence[str], current: str | None) -> bool:
    """Whether lines of If-None-Match name the entity tag `current`, quoted as it is sent (section 13.1.2).

    The comparison is weak (section 8.8.3.2); what is no entity tag is compared as it stands. `*` names any.
    """
    wanted = ",".join(if_none_match).strip()
    if wanted in {"*", current}:
        return True
    if current is None or not wanted:
        return False
    return _opaque(current) in (list(_tags(wanted)) or [_opaque(wanted)])


def names_tag(lines: Sequence[str], tag: str) -> bool:
    """Whether lines of If-None-Match or If-Range name this very entity tag, weakly compared."""
    return _opaque(tag) in _tags(",".join(lines))


def _tags(text: str) -> Iterator[str]:
    return (_opaque(tag[0]) for tag in islice(_ENTITY_TAG.finditer(text), MOST_TAGS))


def _opaque(tag: str) -> str:
    return tag.removeprefix("W/").strip('"')


def range_applies(if_range: str | None, etag: str | None, last_modified: str | None = None) -> bool:
    """Whether If-Range lets a Range take effect: there is none, or it is the very strong entity tag or the very date
    of what would be sent (section 13.1.5).
    """
    return if_range is None or (not if_range.startswith("W/") and if_range in {etag, last_modified})
