"""Structured logs on standard error, one event per line, without secrets.

The line of a request is the most expensive part of a small request, and most of the cost of a file from memory. So
`AccessLines` writes it in a shorter way than other lines: it is composed from a constant beginning and searched for
secrets once, as a whole, and all requests that the event loop has answered in one turn are logged together, after the
answers.
"""

import asyncio
import collections
import datetime
import functools
import json
import logging
import os
import re
import select
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

import attrs
import cachetools
import orjson
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

#: Lines for programs or for people. `auto` means for people if they go to a terminal.
LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]

REDACTED = "[REDACTED]"
#: The id of the request that is being answered, for all lines about it.
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
#: Names of fields, parameters and headers whose values are never logged.
SECRET_NAME = re.compile(
    r"token|secret|password|authorization|cookie|credential|private.?key|signature", re.IGNORECASE
)
#: The beginning of a query parameter with a value. Names end where the next parameter may begin and are searched
#: once, because clients choose what is logged.
_NAME = r"(?<=[?&])(?=[^=&?\s]*+=)"
_SECRET_IN_TEXT = re.compile(
    r"\b(?:flpat|flptt|fljob|flso|flinv|flcon|flpwd|flsin|glrt)-[\w.-]+"  # our own tokens, wherever they stand
    r"|(?<=://)[^/\s\"']+(?=@)"  # user and password in a URL, up to the last @ before its path
    rf"|{_NAME}[^=&?\s]*?(?:token|secret|password)[^=&?\s]*+=[^&\s\"']*"  # query parameters
    rf"|{_NAME}(?:[^=&?\s]*(?:\[|%5[Bb]))?value(?:\]|%5[Dd])?=[^&\s\"']*"  # values of CI/CD variables
    rf"|{_NAME}variables(?:\[|%5[Bb])[^=&?\s]*+=[^&\s\"']*"
    r"|(?i:(?<=bearer )|(?<=basic ))[\w.~+/=-]+"
)


def may_hold_secret(text: str) -> bool:
    """Return whether the text may hold a secret. This costs a fiftieth of the search, and is also true of some texts
    without secrets."""
    if not text.isascii():  # some other letters equal `s` or `i` if case is ignored
        return True
    return (
        ("fl" in text or "glrt-" in text)
        or ("@" in text and "://" in text)
        or ("=" in text and ("&" in text or "?" in text) and _names_secret(text))
        or (" " in text and _says_bearer(text.lower()))
    )


def _names_secret(text: str) -> bool:
    return "token" in text or "secret" in text or "password" in text or "value" in text or "variables" in text


def _says_bearer(text: str) -> bool:
    return "bearer " in text or "basic " in text


def redact(text: str) -> str:
    """Return `text` without tokens, credentials in URLs and secret query parameters."""
    if not may_hold_secret(text):
        return text
    return _SECRET_IN_TEXT.sub(
        lambda m: (
            f"{m[0].split('=', 1)[0]}={REDACTED}" if "=" in m[0] and not m[0].endswith("=") else REDACTED
        ),
        text,
    )


class OwnFaults(logging.Filter):
    """A filter that drops aiohttp's messages about malformed requests, which contain their bytes, and about clients
    that have disconnected."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is about a fault of this process."""
        from aiohttp.http_exceptions import HttpProcessingError  # commands log without it

        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, ConnectionError | HttpProcessingError)


class Lines:
    """The logger to which structlog writes lines. A line that cannot be written, because the disk is full or the reader
    has ended, is lost without affecting requests."""

    def __init__(self, file: BinaryIO, name: str | None = None) -> None:
        self.name = name
        self._write, self._flush = file.write, file.flush

    def msg(self, line: bytes) -> None:
        """Write a line as a whole, whatever other threads write."""
        try:
            self._write(line + b"\n")
            self._flush()
        except (OSError, ValueError):
            pass

    debug = info = warning = error = critical = exception = msg


#: Fields that have lines of their own.
_LAID_OUT = frozenset(("event", "exception", "stack"))


class Console:
    """A formatter of lines for people. structlog's default one would print local variables of tracebacks, which contain
    secrets."""

    def __init__(self, *, colors: bool) -> None:
        self.styles = structlog.dev.ConsoleRenderer.get_default_column_styles(colors)
        self._render = structlog.dev.ConsoleRenderer(
            colors=colors, exception_formatter=structlog.dev.plain_traceback
        )
        self._heads: dict[str, str] = {}

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        escaped = {
            name: _Escaped(value)
            if isinstance(value, str) and not value.isprintable() and name not in _LAID_OUT
            else value
            for name, value in event.items()
        }
        return self._render(logger, method, escaped)

    def head(self, name: str, event: EventDict) -> str:
        """Return the beginning of all lines of the logger `name` about this event."""
        if name not in self._heads:
            self._heads[name] = self(None, "", event)
        return self._heads[name]


class _Escaped:
    """A text with characters that would control a terminal."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


@attrs.frozen
class Formatter:
    """A formatter of events as lines, for people with `console`, for programs without it."""

    processors: list[Processor]
    lines: Lines
    console: Console | None


def configure(
    format_: LogFormat, level: LogLevel = "INFO", stream: TextIO | None = None, file: Path | None = None
) -> None:
    """Send structlog's and the standard library's records through the same steps to standard error, to `stream`, or
    to the end of `file`. Raise `OSError` if the file cannot be written.

    structlog's events do not become records of the standard library, which would double the cost of a line.
    """
    if file is not None:
        stream = _opened[file] = os.fdopen(_open(file), "a", encoding="utf-8", errors="replace")
    stream = stream or sys.stderr
    for_programs = format_ == "json" or (format_ == "auto" and not stream.isatty())
    steps: list[Processor] = [
        _add_request_id,
        structlog.processors.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.format_exc_info,
        _redact_event,
        _add_timestamp,
    ]
    console = None if for_programs else Console(colors=stream.isatty())
    renderer = console or _as_json
    processors = [_drop_below_level, *steps, renderer, _encode]
    lines = functools.partial(Lines, stream.buffer)
    _formatters[:] = [Formatter(processors, lines(), console)]
    structlog.configure(
        processors=processors,
        logger_factory=lines,
        # Loggers are bound only once, so each event checks the level, which may change.
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=steps,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], force=True)
    set_level(level)
    logging.getLogger("aiohttp.server").addFilter(OwnFaults())


def current_formatter() -> Formatter | None:
    """Return the formatter that `configure` has set, or None before that, and if a test has replaced it."""
    is_ours = _formatters and structlog.get_config()["processors"] is _formatters[0].processors
    return _formatters[0] if is_ours else None


_formatters: list[Formatter] = []


def set_level(level: LogLevel) -> None:
    """Log nothing below `level` from now on."""
    logging.getLogger().setLevel(level)


def reopening() -> Callable[[], None]:
    """Return a function that continues the log in a new file after its file was moved. Call this once. The function
    raises `OSError` if there can be no new file; the old one then stays."""
    new = {stream: _open(file) for file, stream in _opened.items()}

    def reopen() -> None:
        for stream, descriptor in new.items():
            stream.flush()
            os.dup2(descriptor, stream.fileno(), inheritable=False)
            os.close(descriptor)

    return reopen


#: The log's file. Its descriptor stays the same when the file changes.
_opened: dict[Path, TextIO] = {}


def _open(file: Path) -> int:
    return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


_LEVELS = logging.getLevelNamesMapping() | {"EXCEPTION": logging.ERROR, "WARN": logging.WARNING}


def _drop_below_level(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if _LEVELS[method.upper()] < logging.root.level:
        raise structlog.DropEvent
    return event


def _add_request_id(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    request_id = REQUEST_ID.get()
    if request_id is not None:
        event.setdefault("request_id", request_id)
    return event


def _add_timestamp(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event["timestamp"] = f"{datetime.datetime.now(datetime.UTC):{_MOMENT}}"
    return event


def _as_json(_logger: WrappedLogger, _method: str, event: EventDict) -> Any:
    first = {name: event.pop(name) for name in ("timestamp", "level", "logger", "event") if name in event}
    return json_bytes({**first, **event}).decode()


def json_bytes(event: Mapping[str, Any]) -> bytes:
    """Return an event as JSON, whatever it contains."""
    try:
        return orjson.dumps(event, default=repr, option=_JSON)
    except (TypeError, ValueError):  # a lone surrogate, or a number of more than 64 bits
        return json.dumps(event, default=_text, skipkeys=True).encode()


def _text(value: object) -> str:
    return f"{value:{_MOMENT}}" if isinstance(value, datetime.datetime) else repr(value)


_MOMENT = "%Y-%m-%dT%H:%M:%S.%fZ"
_JSON = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


def _encode(_logger: WrappedLogger, _method: str, line: Any) -> bytes:
    return str(line).encode(errors="replace")


@cache
def _is_secret(name: str) -> bool:
    return SECRET_NAME.search(name) is not None


def _redact_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {name: REDACTED if _is_secret(name) else _redact_value(value) for name, value in event.items()}


def _redact_value(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {k: REDACTED if SECRET_NAME.search(str(k)) else _redact_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redact_value(item) for item in value]
    return value


#: Types of a field's value.
FieldValue = str | int | float | None

#: A text with one of these characters is quoted for people.
_ODD = re.compile(r"[ ='\"]")
#: Nanoseconds since 1970.
_now = time.time_ns
#: The placeholder for the time in the beginning of a line.
_MOMENT_HERE = "\N{REPLACEMENT CHARACTER}"


class AccessLines:
    """A writer of a line `request` at INFO for each request with the given fields, as the logger `name` would write it.
    Secrets are removed from texts. Names of fields come from the program and are not searched."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._log = structlog.get_logger(name)
        self._event = {"timestamp": _MOMENT_HERE, "level": "info", "logger": name, "event": "request"}
        self._after_moment = orjson.dumps(self._event).decode().partition(_MOMENT_HERE)[2].removesuffix("}")
        self._second = (0, "")
        #: The time of each answered request, and its fields.
        self._waiting: collections.deque[tuple[int, Mapping[str, FieldValue]]] = collections.deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, fields: Mapping[str, FieldValue]) -> None:
        """Write the line in the event loop's next turn, or at once without a loop. `fields` must not be changed
        afterwards."""
        if current_formatter() is None:  # a test captures the events
            self._log.info("request", **_redacted_fields(fields))
        elif logging.root.level <= logging.INFO:
            self._waiting.append((_now(), fields))
            self._see_to_it()

    def _see_to_it(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._write()
            return
        # Another loop may have ended before it wrote them.
        if len(self._waiting) == 1 or loop is not self._loop:
            self._loop = loop
            loop.call_soon(self._write)

    def _write(self) -> None:
        formatter = current_formatter()
        if formatter is not None:
            for chunk in _joined_lines(self._lines(formatter.console)):
                formatter.lines.msg(chunk)

    def _lines(self, console: Console | None) -> Iterator[bytes]:
        while self._waiting:
            when, fields = self._waiting.popleft()
            moment = self._moment(when)
            if console is None:
                yield f'{{"timestamp":"{moment}Z{self._after_moment}{_fields_as_json(fields)}'.encode()
            else:
                yield self._for_people(moment, fields, console).encode(errors="replace")

    def _moment(self, when: int) -> str:
        """Return the time without the zone."""
        second, nanoseconds = divmod(when, 1_000_000_000)
        cached_second, text = self._second
        if second != cached_second:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second, text
        return f"{text}.{nanoseconds // 1000:06}"

    def _for_people(self, moment: str, fields: Mapping[str, FieldValue], console: Console) -> str:
        style = console.styles
        head = console.head(self._name, dict(self._event)).replace(_MOMENT_HERE, f"{moment}Z", 1)
        return head + "".join(
            f" {style.kv_key}{name}{style.reset}={style.kv_value}{_value_for_people(value)}{style.reset}"
            for name, value in sorted(_redacted_fields(fields).items())
        )


def _joined_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield joined lines, as many as can be written to a pipe without being mixed with other processes' lines."""
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


def _fields_as_json(fields: Mapping[str, FieldValue]) -> str:
    """Return the rest of a line, after its beginning."""
    try:
        text = orjson.dumps(fields).decode()
    except (TypeError, ValueError):  # a lone surrogate, or a number of more than 64 bits
        text = json_bytes(_redacted_fields(fields)).decode()
    else:
        if may_hold_secret(text):  # JSON does not change the signs of a secret
            text = json_bytes(_redacted_fields(fields)).decode()
    return f",{text[1:]}" if fields else "}"


def _redacted_fields(fields: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
    return {name: redact(value) if isinstance(value, str) else value for name, value in fields.items()}


def _value_for_people(value: FieldValue) -> str:
    if isinstance(value, str) and value.isprintable() and _ODD.search(value) is None:
        return value
    return repr(value)


#: Maximum number of subjects whose last line is stored.
_REMEMBERED = 1024


@attrs.define
class _LineState:
    written_at: float
    left_out: int = 0


class ThrottledLog:
    """A log that writes at most one line about the same subject in `seconds`. The next line counts the omitted ones.

    `clock` returns seconds of a steady clock.
    """

    def __init__(
        self,
        log: FilteringBoundLogger,
        seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._seconds = seconds
        self._clock = clock
        self._states: cachetools.LRUCache[Hashable, _LineState] = cachetools.LRUCache(_REMEMBERED)

    def warning(self, event: str, about: Hashable = None, **fields: Any) -> None:
        """Log that something on which this process depends does not work."""
        self._write(self._log.warning, event, about, fields)

    def error(self, event: str, about: Hashable = None, **fields: Any) -> None:
        """Log that a part of this process does not work. `exc_info=True` adds the traceback."""
        self._write(self._log.error, event, about, fields)

    def _write(self, write: Callable[..., Any], event: str, about: Hashable, fields: dict[str, Any]) -> None:
        now, state = self._clock(), self._states.get((event, about))
        if state is not None and now - state.written_at < self._seconds:
            state.left_out += 1
            return
        if state is not None and state.left_out:
            fields["left_out"] = state.left_out
        self._states[event, about] = _LineState(now)
        write(event, **fields)
