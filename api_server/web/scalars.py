"""Single values as GitLab takes them: strictly, whether they come as JSON or as text."""

import datetime
import math
from collections.abc import Callable, Mapping
from typing import Any

from api_server.web import dates

_TRUE = frozenset({"true", "t", "1", "y", "yes", "on"})
_FALSE = frozenset({"false", "f", "0", "n", "no", "off"})


class Refused(Exception):
    """A value that does not fit; the text continues the parameter's name: `is invalid`."""


def integer(value: Any, _type: Any) -> int:
    if isinstance(value, str) and (
        len(value) < 30 and value.isascii() and value.removeprefix("-").isdecimal()
    ):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise Refused("is invalid")
    return value


def number(value: Any, _type: Any) -> float:
    try:
        if not isinstance(value, bool) and math.isfinite(found := float(value)):
            return found
    except (TypeError, ValueError):
        pass
    raise Refused("is invalid")


def boolean(value: Any, _type: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower() if isinstance(value, (str, int)) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise Refused("is invalid")


def string(value: Any, _type: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or "\0" in value or not _is_unicode(value):
        raise Refused("is invalid")
    return value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def date(value: Any, _type: Any) -> datetime.date:
    """The day as it is written, whatever the zone of a time behind it."""
    return _moment(value).date()


def moment(value: Any, _type: Any) -> datetime.datetime:
    try:
        return _moment(value).astimezone(datetime.UTC)
    except OverflowError:
        raise Refused("is invalid") from None


def _moment(value: Any) -> datetime.datetime:
    try:
        return dates.moment(value)
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise Refused("is invalid") from None


#: What each type of a parameter accepts.
HOOKS: Mapping[Any, Callable[[Any, Any], Any]] = {
    int: integer,
    float: number,
    bool: boolean,
    str: string,
    datetime.date: date,
    datetime.datetime: moment,
}
