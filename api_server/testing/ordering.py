"""What may be said of a failure to order, and what is wrong with it in a sentence."""

import difflib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from api_server.testing.path_patterns import check_pattern
from api_server.testing.steering import refused

LONGEST_DELAY = 300
MOST_TIMES = 1_000_000
MOST_CUT = 2**40
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_METHOD = re.compile(r"[A-Z]{1,20}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
#: What says where an answer ends is the server's own.
_FRAMING = {"content-length", "transfer-encoding", "connection"}


def ordered(sent: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of a failure but `id` and `left`. Raises 400."""
    for name in sent:
        if name not in _FIELDS:
            near = difflib.get_close_matches(name, _FIELDS, n=1) or [", ".join(_FIELDS)]
            raise refused(f"A failure has no {name[:50]!r}; did you mean {near[0]}?")
    values = {name: default for name, (default, _) in _FIELDS.items()}
    for name, value in sent.items():
        if value is not None:
            values[name] = _FIELDS[name][1](name, value)
    if values["path"] is None:
        raise refused("path is missing: a pattern such as /api/v4/projects/*/jobs, or ** for every path.")
    if values["cut"] is True and (values["status"] or values["headers"]):
        raise refused("cut is true: no answer is begun that could have a status or headers.")
    if values["status"] is None and values["body"] is not None:
        raise refused("body is without status: the real answer has a body of its own.")
    if values["status"] is None and not (values["headers"] or values["delay"] or values["cut"] is not False):
        raise refused("Nothing fails: name status, headers, delay or cut.")
    return values


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise refused(f"{name} has to be a text.")
    return value


def _method(name: str, value: Any) -> str | None:
    method = _text(name, value).upper()
    if method == "*":
        return None
    if not _METHOD.fullmatch(method):
        raise refused(f"{name} has to be an HTTP method such as GET.")
    return method


def _path(name: str, value: Any) -> str:
    return check_pattern(name, _text(name, value))


def _integer(least: int, most: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise refused(f"{name} has to be a whole number from {least} to {most}.")
        return value

    return check


def _delay(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= LONGEST_DELAY:
        raise refused(f"{name} has to be a number of seconds from 0 to {LONGEST_DELAY}.")
    return float(value)


def _cut(name: str, value: Any) -> bool | int:
    if type(value) is bool:
        return value
    if type(value) is not int or not 0 <= value <= MOST_CUT:
        raise refused(f"{name} has to be true, or the number of bytes of the answer's body that are sent.")
    return value


def _headers(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise refused(f'{name} has to be an object such as {{"Retry-After": "1"}}.')
    for field, text in value.items():
        if not _TOKEN.fullmatch(field) or field.lower() in _FRAMING:
            raise refused(f"{name} cannot hold {field[:50]!r}.")
        if type(text) not in (str, int) or not _HEADER_VALUE.fullmatch(str(text)):
            raise refused(f"{name}: {field} has to be a text of one line, or a whole number.")
    return {field: str(text) for field, text in value.items()}


def _body(_name: str, value: Any) -> Any:
    return value


#: In the order in which a failure is shown: what each is without being sent, and what looks at it.
_FIELDS: dict[str, tuple[Any, Callable[[str, Any], Any]]] = {
    "method": (None, _method),
    "path": (None, _path),
    "user": (None, _text),
    "status": (None, _integer(200, 599)),
    "headers": ({}, _headers),
    "body": (None, _body),
    "delay": (0.0, _delay),
    "cut": (False, _cut),
    "times": (1, _integer(1, MOST_TIMES)),
}
