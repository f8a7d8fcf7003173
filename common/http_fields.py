"""Dates, conditions and ranges of HTTP (RFC 9110 sections 5.6.7, 13 and 14), and bodies as chunks of bytes."""

import calendar
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from typing import Final

import attrs

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
#: IMF-fixdate, and the obsolete forms of RFC 850 and of asctime.
_FORMS = tuple(
    re.compile(form, re.IGNORECASE | re.ASCII)
    for form in (
        rf"[a-z]{{3}}, (?P<day>\d\d) (?P<month>[a-z]{{3}}) (?P<year>\d{{4}}) {_CLOCK} GMT",
        rf"[a-z]{{6,9}}, (?P<day>\d\d)-(?P<month>[a-z]{{3}})-(?P<year>\d\d) {_CLOCK} GMT",
        rf"[a-z]{{3}} (?P<month>[a-z]{{3}}) (?P<day>[ \d]\d) {_CLOCK} (?P<year>\d{{4}})",
    )
)


def parse_date(value: str | None, now: float) -> float | None:
    """Return an HTTP-date as seconds since 1970, or None for anything else.

    `now` decides the century of the two-digit form: no date is read as more than 50 years ahead.
    """
    for form in _FORMS:
        if value is not None and (match := form.fullmatch(value)):
            return _timestamp(match, now)
    return None


def _timestamp(match: re.Match[str], now: float) -> float | None:
    day, hour, minute, second, year = (
        int(match[part]) for part in ("day", "hour", "minute", "second", "year")
    )
    if len(match["year"]) == 2:
        this_year = int(1970 + now / 31_556_952)
        year += this_year - this_year % 100
        year -= 100 if year > this_year + 50 else 0
    if match["month"].lower() not in _MONTHS or year < 1970 or hour > 23 or minute > 59 or second > 60:
        return None
    month = 1 + _MONTHS.index(match["month"].lower())
    if not 1 <= day <= calendar.monthrange(year, month)[1]:
        return None
    return float(calendar.timegm((year, month, day, hour, minute, second)))


#: Names of the fields, in lower case, that describe a body and that a 304 does not have (section 15.4.5).
CONTENT_FIELDS: Final = ("content-encoding", "content-length", "content-range", "content-type")

#: The number of entity tags of a request that are compared. A request with more may get an object that it already
#: has.
MAX_TAGS: Final = 100

_ENTITY_TAG = re.compile(r'(?:W/)?"[^"]*"')


def has_tag(if_none_match: Sequence[str], current: str | None) -> bool:
    """Return whether lines of If-None-Match name the entity tag `current`, quoted as it is sent (section 13.1.2).

    The comparison is weak (section 8.8.3.2). Invalid tags are compared literally. `*` matches any tag.
    """
    field = ",".join(if_none_match).strip()
    if field in {"*", current}:
        return True
    if current is None or not field:
        return False
    return _opaque(current) in (list(_tags(field)) or [_opaque(field)])


def names_tag(lines: Sequence[str], tag: str) -> bool:
    """Return whether lines of If-None-Match or If-Range name this entity tag, compared weakly."""
    return _opaque(tag) in _tags(",".join(lines))


def _tags(text: str) -> Iterator[str]:
    return (_opaque(tag[0]) for tag in islice(_ENTITY_TAG.finditer(text), MAX_TAGS))


def _opaque(tag: str) -> str:
    return tag.removeprefix("W/").strip('"')


def range_applies(if_range: str | None, etag: str | None, last_modified: str | None = None) -> bool:
    """Return whether If-Range lets a Range take effect: it is absent, or it is exactly the strong entity tag or the
    date of what would be sent (section 13.1.5)."""
    return if_range is None or (not if_range.startswith("W/") and if_range in {etag, last_modified})


#: A request with more ranges is answered with the whole representation: many ranges only multiply the answer (section
#: 14.2 lets a server ignore them).
MAX_RANGES: Final = 16

#: `first-last`, `first-` or `-suffix`. The number of digits is limited because int() refuses longer numbers.
_SPEC = re.compile(r"([0-9]{1,4000})-([0-9]{0,4000})|-([0-9]{1,4000})")


@attrs.frozen(order=True)
class Span:
    """The bytes from `first` up to and including `last` of a representation."""

    first: int
    last: int

    @property
    def length(self) -> int:
        """The number of bytes."""
        return self.last - self.first + 1


class UnsatisfiableError(ValueError):
    """None of the ranges lies in the representation; the answer is 416."""


def requested_ranges(field: str | None, length: int) -> list[Span] | None:
    """Return the ranges that a Range field asks for, of a representation with `length` bytes. Return None for the
    whole representation: if the field is absent, not in bytes, malformed, or has too many ranges (section 14.2).

    Overlapping ranges are joined, so that no byte is sent twice; the others keep their order. Raise
    `UnsatisfiableError`.
    """
    unit, _, text = (field or "").partition("=")
    specs = [spec for member in text.split(",") if (spec := member.strip(" \t"))]
    if unit.strip().lower() != "bytes" or not 0 < len(specs) <= MAX_RANGES:
        return None
    spans = []
    for spec in specs:
        match = _SPEC.fullmatch(spec)
        if match is None:
            return None
        span = _span(match[1], match[2], match[3], length)
        if span is None:
            return None
        spans.append(span)
    satisfiable = [span for span in spans if span.first <= span.last]
    if not satisfiable:
        raise UnsatisfiableError
    merged = _merged(satisfiable)
    return satisfiable if len(merged) == len(satisfiable) else merged


def _span(first: str | None, last: str | None, suffix: str | None, length: int) -> Span | None:
    """Return one range within `length` bytes, empty if it lies behind them, or None if it is written backwards
    (section 14.1.2)."""
    if first is None:
        return Span(max(0, length - int(suffix or 0)), length - 1)
    if last and int(last) < int(first):
        return None
    return Span(int(first), min(int(last), length - 1) if last else length - 1)


def _merged(spans: list[Span]) -> list[Span]:
    ordered = sorted(spans)
    result = ordered[:1]
    for span in ordered[1:]:
        if span.first <= result[-1].last:
            result[-1] = Span(result[-1].first, max(result[-1].last, span.last))
        else:
            result.append(span)
    return result


def content_range(span: Span | None, length: int) -> str:
    """Return Content-Range for one part, or for a 416 without a part (section 14.4)."""
    return f"bytes */{length}" if span is None else f"bytes {span.first}-{span.last}/{length}"


async def rejoined(head: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a whole body whose `head` has already been read."""
    yield head
    async for chunk in rest:
        yield chunk
