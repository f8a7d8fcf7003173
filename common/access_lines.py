"""The line of a request: as other lines of the log are (`logs.py`), at a fraction of their cost.

A line is the dearest part of a small request, and most of a file that is served from memory. So it is put together
from a beginning that is always the same, and looked through for secrets once, as a whole.
"""

import logging
import re
import time
from collections.abc import Mapping

import orjson
import structlog

from common import logs

#: What a field holds.
Value = str | int | float | None

#: With one of these a text stands in quotes where people read it.
_ODD = re.compile(r"[ ='\"]")
#: Nanoseconds since 1970.
_now = time.time_ns
#: In the place of the moment, in the beginning of a line.
_MOMENT = "\N{REPLACEMENT CHARACTER}"


class AccessLines:
    """Writes a line `request` at INFO for each request, with the fields that it is called with, as the logger `name`
    would. Secrets are taken out of texts; the names of fields, which are the program's own, are not looked at."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._log = structlog.get_logger(name)
        self._event = {"timestamp": _MOMENT, "level": "info", "logger": name, "event": "request"}
        self._after_moment = orjson.dumps(self._event).decode().partition(_MOMENT)[2].removesuffix("}")
        self._second = (0, "")

    def __call__(self, fields: Mapping[str, Value]) -> None:
        way = logs.way()
        if way is None:  # a test listens
            self._log.info("request", **_redacted(fields))
        elif logging.root.level > logging.INFO:
            return
        elif way.console is None:
            line = f'{{"timestamp":"{self._moment()}Z{self._after_moment}{_as_json(fields)}'
            way.lines.msg(line.encode())
        else:
            way.lines.msg(self._for_people(fields, way.console).encode(errors="replace"))

    def _moment(self) -> str:
        """Without the zone."""
        second, nanoseconds = divmod(_now(), 1_000_000_000)
        known, text = self._second
        if second != known:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second, text
        return f"{text}.{nanoseconds // 1000:06}"

    def _for_people(self, fields: Mapping[str, Value], console: logs.Console) -> str:
        style = console.styles
        head = console.head(self._name, dict(self._event)).replace(_MOMENT, f"{self._moment()}Z", 1)
        return head + "".join(
            f" {style.kv_key}{name}{style.reset}={style.kv_value}{_shown(value)}{style.reset}"
            for name, value in sorted(_redacted(fields).items())
        )


def _as_json(fields: Mapping[str, Value]) -> str:
    """What follows the beginning of a line."""
    try:
        text = orjson.dumps(fields).decode()
    except (TypeError, ValueError):  # half a character, or a number of more than 64 bits
        text = logs.json_bytes(_redacted(fields)).decode()
    else:
        if logs.may_hold_secret(text):  # nothing that tells of one looks different in JSON
            text = logs.json_bytes(_redacted(fields)).decode()
    return f",{text[1:]}" if fields else "}"


def _redacted(fields: Mapping[str, Value]) -> dict[str, Value]:
    return {name: logs.redact(value) if isinstance(value, str) else value for name, value in fields.items()}


def _shown(value: Value) -> str:
    if isinstance(value, str) and value.isprintable() and _ODD.search(value) is None:
        return value
    return repr(value)
