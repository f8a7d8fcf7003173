"""Dates as HTTP writes them (RFC 9110 section 5.6.7)."""

import calendar
import re

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


def parse(value: str | None, now: float) -> float | None:
    """Seconds since 1970 of an HTTP-date, or None for anything else.

    `now` decides the century of the two-digit form: no such date is read as more than 50 years ahead.
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
