"""The line of a request: as other lines of the log are (`logs.py`), at a fraction of their cost.

A line is the dearest part of a small request, and most of a file that is served from memory. So it is put together
from a beginning that is always the same, and looked through for secrets once, as a whole; and all that the event loop
has answered in one turn are written behind the answers, together.
"""

import asyncio
import collections
import logging
import re
import select
import time
from collections.abc import Iterable, Iterator, Mapping

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
        #: When a request was answered, and its fields.
        self._waiting: collections.deque[tuple[int, Mapping[str, Value]]] = collections.deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, fields: Mapping[str, Value]) -> None:
        """Written at the event loop's next turn; at once where none runs. `fields` are not to be changed."""
        if logs.way() is None:  # a test listens
            self._log.info("request", **_redacted(fields))
        elif logging.root.level <= logging.INFO:
            self._waiting.append((_now(), fields))
            self._see_to_it()

    def _see_to_it(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._write()
            return
        if len(self._waiting) == 1 or loop is not self._loop:  # which may have ended before it came to them
            self._loop = loop
            loop.call_soon(self._write)

    def _write(self) -> None:
        way = logs.way()
        if way is not None:
            for piece in _pieces(self._lines(way.console)):
                way.lines.msg(piece)

    def _lines(self, console: logs.Console | None) -> Iterator[bytes]:
        while self._waiting:
            when, fields = self._waiting.popleft()
            moment = self._moment(when)
            if console is None:
                yield f'{{"timestamp":"{moment}Z{self._after_moment}{_as_json(fields)}'.encode()
            else:
                yield self._for_people(moment, fields, console).encode(errors="replace")

    def _moment(self, when: int) -> str:
        """Without the zone."""
        second, nanoseconds = divmod(when, 1_000_000_000)
        known, text = self._second
        if second != known:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second, text
        return f"{text}.{nanoseconds // 1000:06}"

    def _for_people(self, moment: str, fields: Mapping[str, Value], console: logs.Console) -> str:
        style = console.styles
        head = console.head(self._name, dict(self._event)).replace(_MOMENT, f"{moment}Z", 1)
        return head + "".join(
            f" {style.kv_key}{name}{style.reset}={style.kv_value}{_shown(value)}{style.reset}"
            for name, value in sorted(_redacted(fields).items())
        )


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines put together, as many as a pipe takes without those of other processes in between."""
    together: list[bytes] = []
    size = 0
    for line in lines:
        size += len(line) + 1
        if together and size > select.PIPE_BUF:
            yield b"\n".join(together)
            together, size = [], len(line) + 1
        together.append(line)
    if together:
        yield b"\n".join(together)


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
