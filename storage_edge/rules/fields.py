"""Field values that the caching rules read: directives, dates, seconds and lists (RFC 9110 5, 9111 5)."""

import calendar
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

#: delta-seconds above this count as this (RFC 9111 section 1.2.2).
MAX_SECONDS: Final = 2**31

#: Directive name in lower case -> argument without its quotes, or None.
Directives = Mapping[str, str | None]

_DIRECTIVE = re.compile(
    r"""[\s,]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)(?:=(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*)))?(?=\s*(?:,|$))|[^,]+|,""",
    re.VERBOSE,
)
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
#: The three forms of an HTTP-date: IMF-fixdate, RFC 850, asctime.
_DATES = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"[a-z]{{3}}, (?P<day>\d\d) (?P<month>[a-z]{{3}}) (?P<year>\d{{4}}) {_CLOCK} GMT",
        rf"[a-z]{{6,9}}, (?P<day>\d\d)-(?P<month>[a-z]{{3}})-(?P<year>\d\d) {_CLOCK} GMT",
        rf"[a-z]{{3}} (?P<month>[a-z]{{3}}) (?P<day>[ \d]\d) {_CLOCK} (?P<year>\d{{4}})",
    )
)


def directives(values: Iterable[str]) -> Directives:
    """All members of the given Cache-Control lines; of several of one name the first counts (RFC 9111 4.2.1).

    What does not parse as a directive is left out.
    """
    found: dict[str, str | None] = {}
    for match in _DIRECTIVE.finditer(",".join(values)):
        name, quoted, bare = match.groups()
        if name is not None:
            found.setdefault(name.lower(), bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
    return found


def seconds(value: str | None) -> int | None:
    """delta-seconds, or None when it is none (RFC 9111 section 1.2.2)."""
    if value is None or not value.isascii() or not value.isdigit():
        return None
    return MAX_SECONDS if len(value) > 10 else min(int(value), MAX_SECONDS)


def members(values: Iterable[str]) -> list[str]:
    """The members of a list-based field without quoted strings (RFC 9110 section 5.6.1)."""
    return [stripped for value in values for member in value.split(",") if (stripped := member.strip())]


def http_date(value: str | None, now: float) -> float | None:
    """Seconds since 1970 of an HTTP-date, or None for anything else (RFC 9110 section 5.6.7).

    `now` decides the century of the two-digit form: no such date is read as more than 50 years ahead.
    """
    for form in _DATES:
        if value is not None and (match := form.fullmatch(value)):
            return _timestamp(match, now)
    return None


def _timestamp(match: re.Match[str], now: float) -> float | None:
    month = _MONTHS.get(match["month"].lower())
    day, hour, minute, second = (int(match[part]) for part in ("day", "hour", "minute", "second"))
    year = int(match["year"])
    if len(match["year"]) == 2:
        this_year = int(1970 + now / 31_556_952)
        year += this_year - this_year % 100
        year -= 100 if year > this_year + 50 else 0
    if month is None or year < 1970 or hour > 23 or minute > 59 or second > 60:
        return None
    if not 1 <= day <= calendar.monthrange(year, month)[1]:
        return None
    return float(calendar.timegm((year, month, day, hour, minute, second)))


def age_value(values: Sequence[str]) -> int:
    """The Age of a response; the first member counts, one that does not parse is ignored (RFC 9111 5.1)."""
    return seconds(values[0].split(",", 1)[0].strip()) or 0 if values else 0
