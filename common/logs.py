"""Structured logs on standard error, one event a line, with everything secret taken out.

The line of a request goes a shorter way than others: `access_lines.py`.
"""

import datetime
import functools
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

import attrs
import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

#: Lines for programs, or for people; `auto`: for people where they go to a terminal.
LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]

REDACTED = "[REDACTED]"
#: The id of the request that is being answered, for all lines about it.
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
#: Names of fields, parameters and headers whose values never reach a log.
SECRET_NAME = re.compile(
    r"token|secret|password|authorization|cookie|credential|private.?key|signature", re.IGNORECASE
)
#: What comes before the name of a query parameter that has a value. Names end where the next parameter may begin, and
#: are looked through once: strangers choose what is logged.
_NAME = r"(?<=[?&])(?=[^=&?\s]*+=)"
_SECRET_IN_TEXT = re.compile(
    r"\b(?:flpat|flptt|fljob|flso|flinv|flcon|flpwd|glrt)-[\w.-]+"  # our own tokens, wherever they stand
    r"|(?<=://)[^/@\s\"']+(?=@)"  # userinfo of a URL
    rf"|{_NAME}[^=&?\s]*?(?:token|secret|password)[^=&?\s]*+=[^&\s\"']*"  # query parameters
    rf"|{_NAME}(?:[^=&?\s]*(?:\[|%5[Bb]))?value(?:\]|%5[Dd])?=[^&\s\"']*"  # of CI/CD variables
    rf"|{_NAME}variables(?:\[|%5[Bb])[^=&?\s]*+=[^&\s\"']*"
    r"|(?i:(?<=bearer )|(?<=basic ))[\w.~+/=-]+"
)


def may_hold_secret(text: str) -> bool:
    """Whether it is worth looking for one: found at a fiftieth of the cost, and also said of some that hold none."""
    if not text.isascii():  # there are letters that are an `s` or an `i` where case is ignored
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
    """`text` without tokens, URL credentials and secret query parameters."""
    if not may_hold_secret(text):
        return text
    return _SECRET_IN_TEXT.sub(
        lambda m: (
            f"{m[0].split('=', 1)[0]}={REDACTED}" if "=" in m[0] and not m[0].endswith("=") else REDACTED
        ),
        text,
    )


class OwnFaults(logging.Filter):
    """Drops what aiohttp says about malformed requests, with their bytes, and about clients that went away."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is about a fault of this process."""
        from aiohttp.http_exceptions import HttpProcessingError  # commands log without it

        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, ConnectionError | HttpProcessingError)


class Lines:
    """Where lines go: a logger of structlog's. One that cannot be written is lost (the disk is full, the reader has
    gone), and whoever asked for something is answered all the same."""

    def __init__(self, file: BinaryIO, name: str | None = None) -> None:
        self.name = name
        self._write, self._flush = file.write, file.flush

    def msg(self, line: bytes) -> None:
        """Writes it whole, whatever other threads write."""
        try:
            self._write(line + b"\n")
            self._flush()
        except (OSError, ValueError):
            pass

    debug = info = warning = error = critical = exception = msg


#: Fields that have lines of their own.
_LAID_OUT = frozenset(("event", "exception", "stack"))


class Console:
    """Lines for people. The default formatter of tracebacks prints local variables, and these hold secrets."""

    def __init__(self, *, colors: bool) -> None:
        self.styles = structlog.dev.ConsoleRenderer.get_default_column_styles(colors)
        self._render = structlog.dev.ConsoleRenderer(
            colors=colors, exception_formatter=structlog.dev.plain_traceback
        )
        self._heads: dict[str, str] = {}

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        shown = {
            name: _Escaped(value)
            if isinstance(value, str) and not value.isprintable() and name not in _LAID_OUT
            else value
            for name, value in event.items()
        }
        return self._render(logger, method, shown)

    def head(self, name: str, event: EventDict) -> str:
        """How lines of the logger `name` begin, all of which begin as `event` is shown."""
        if name not in self._heads:
            self._heads[name] = self(None, "", event)
        return self._heads[name]


class _Escaped:
    """A text that would do something to a terminal."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


@attrs.frozen
class Way:
    """From an event to a line: for people by `console`, for programs where there is none."""

    processors: list[Processor]
    lines: Lines
    console: Console | None


def configure(
    format_: LogFormat, level: LogLevel = "INFO", stream: TextIO | None = None, file: Path | None = None
) -> None:
    """Sends structlog's and the standard library's records through the same steps to standard error (or `stream`, or
    to the end of `file`; raises OSError where that cannot be written).

    structlog's do not become records of the standard library on their way, which doubled the cost of a line.
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
    _ways[:] = [Way(processors, lines(), console)]
    structlog.configure(
        processors=processors,
        logger_factory=lines,
        # What is bound once remains: the level, which may change, is looked at by each event.
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


def way() -> Way | None:
    """What `configure` has set; None before that, and where a test has put something else in its place."""
    is_ours = _ways and structlog.get_config()["processors"] is _ways[0].processors
    return _ways[0] if is_ours else None


_ways: list[Way] = []


def set_level(level: LogLevel) -> None:
    """From now on nothing less than `level` is logged."""
    logging.getLogger().setLevel(level)


def reopening() -> Callable[[], None]:
    """What makes the log go on in a new file where its file has been moved away; to be called once. Raises OSError
    where there cannot be one: then the old one stays."""
    new = {stream: _open(file) for file, stream in _opened.items()}

    def reopen() -> None:
        for stream, descriptor in new.items():
            stream.flush()
            os.dup2(descriptor, stream.fileno(), inheritable=False)
            os.close(descriptor)

    return reopen


#: The log's file, whose descriptor remains the same whatever it stands for.
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
    """An event as programs read it, whatever is in it."""
    try:
        return orjson.dumps(event, default=repr, option=_JSON)
    except (TypeError, ValueError):  # half a character, or a number of more than 64 bits
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
