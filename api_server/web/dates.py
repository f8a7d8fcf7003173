"""Dates as GitLab reads them: whole ones that Ruby's `DateTime.parse` takes, with or without a time of the day.

Parts of dates, years of two digits, unknown names of zones and any other text, which Ruby completes or passes over,
are refused.
"""

import datetime
import re

#: Most characters that Ruby reads.
_LONGEST = 128
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
#: Hours east of Greenwich.
_ZONES = {
    "z": 0,
    "ut": 0,
    "utc": 0,
    "gmt": 0,
    "est": -5,
    "edt": -4,
    "cst": -6,
    "cdt": -5,
    "mst": -7,
    "mdt": -6,
}
_ZONES |= {"pst": -8, "pdt": -7, "bst": 1, "cet": 1, "cest": 2}

_DAY = r"(?P<day>\d{1,2})"
_NAMED_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})[a-z]*"
_DATES = tuple(
    re.compile(rf"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,? )?{form}", re.ASCII)
    for form in (
        rf"(?P<year>\d{{4}})([-/.])(?P<month>\d{{1,2}})\2{_DAY}",
        rf"{_DAY}([-/.])(?P<month>\d{{1,2}})\2(?P<year>\d{{4}})",
        rf"{_DAY}(?:st|nd|rd|th)?[ -]{_NAMED_MONTH}[ -](?P<year>\d{{4}})",
        rf"{_NAMED_MONTH}\.? {_DAY}(?:st|nd|rd|th)?,? (?P<year>\d{{4}})",
    )
)
_TIME = re.compile(
    r"[ t](?P<hour>\d{1,2})(?=:| ?[ap]m)"
    r"(?::(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?)?(?: ?(?P<half>[ap])m(?![a-z]))?"
    rf"(?: ?(?P<zone>{'|'.join(_ZONES)})(?![a-z]))?(?: ?(?P<offset>[-+]\d{{1,2}}(?::?\d\d)?)(?!\S))?"
    r"(?: \([a-z ]+\)$)?",
    re.ASCII,
)

_FOURTEEN_DIGITS = re.compile(r"^(\d{8})(\d{6})(?!\d)", re.ASCII)


def moment(text: str) -> datetime.datetime:
    """The moment as it is written, in UTC where it names no zone. Raises ValueError."""
    if len(text) > _LONGEST:
        raise ValueError("too long")
    text = _FOURTEEN_DIGITS.sub(r"\1t\2", " ".join(text.lower().split()))
    try:
        read = datetime.datetime.fromisoformat(text.upper())
    except ValueError:
        read = _other_form(text)
    return read if read.tzinfo else read.replace(tzinfo=datetime.UTC)


def _other_form(text: str) -> datetime.datetime:
    time = _TIME.search(text)
    rest = text if time is None else text[: time.start()] + text[time.end() :]
    date = next((found for form in _DATES if (found := form.fullmatch(rest))), None)
    if date is None:
        raise ValueError("no date")
    month = date["month"]
    number = int(month) if month.isdecimal() else _MONTHS.index(month) + 1
    midnight = datetime.datetime(int(date["year"]), number, int(date["day"]))
    return midnight if time is None else _at(midnight, time)


def _at(midnight: datetime.datetime, time: re.Match[str]) -> datetime.datetime:
    hour, minute, second = (int(time[part] or 0) for part in ("hour", "minute", "second"))
    if time["half"]:
        if not 1 <= hour <= 12:
            raise ValueError("not an hour of a half day")
        hour = hour % 12 + 12 * (time["half"] == "p")
    days, hour = (1, 0) if (hour, minute, second) == (24, 0, 0) else (0, hour)  # the end of the day
    microsecond = int(f"{time['fraction'] or 0:0<6}"[:6])
    zone = datetime.timezone(datetime.timedelta(hours=_ZONES.get(time["zone"], 0)) + _offset(time["offset"]))
    moment = midnight.replace(
        hour=hour, minute=minute, second=min(second, 59) if second == 60 else second, microsecond=microsecond
    )
    return moment.replace(tzinfo=zone) + datetime.timedelta(days=days)


def _offset(text: str | None) -> datetime.timedelta:
    if text is None:
        return datetime.timedelta()
    sign = -1 if text[0] == "-" else 1
    hours, _, minutes = text[1:].partition(":") if ":" in text else (text[1:3], "", text[3:])
    return sign * datetime.timedelta(hours=int(hours), minutes=int(minutes or 0))
