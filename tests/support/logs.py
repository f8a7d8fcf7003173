"""Log lines in tests: their output, and the lines of one part of a process whose other parts write lines too."""

import contextlib
import contextvars
import io
import logging
import sys
from collections.abc import Iterator

import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict, WrappedLogger

from common import logs


class Logger(structlog.PrintLogger):
    """A logger that has a name and writes to the standard output with which the process began. A test may replace
    `sys.stdout` for a moment, to read the output of a command, and lines of servers must not be written there."""

    def __init__(self, name: str = "") -> None:
        super().__init__(sys.__stdout__)
        self.name = name


_listened_to = contextvars.ContextVar("_listened_to", default=False)


@contextlib.contextmanager
def lines_of_this_test() -> Iterator[list[EventDict]]:
    """Yield the lines that are logged by calls in the block and by servers that it starts, but not by servers that ran
    before."""
    _listened_to.set(True)
    try:
        with capture_logs(processors=[_drop_those_of_others]) as lines:
            yield lines
    finally:
        _listened_to.set(False)


def _drop_those_of_others(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    if not _listened_to.get():
        raise structlog.DropEvent
    return event


@contextlib.contextmanager
def lines_of_edges() -> Iterator[list[EventDict]]:
    """Yield the lines that are logged during the block, except those of API servers: the shared server may still do
    work that earlier tests have caused."""
    with capture_logs(processors=[_drop_those_of_api_servers]) as lines:
        yield lines


def _drop_those_of_api_servers(logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    if logger.name.startswith("api_server"):
        raise structlog.DropEvent
    return event


@contextlib.contextmanager
def log_as_written() -> Iterator[io.BytesIO]:
    """Yield the log of all servers for the duration of the block, as the process writes it."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    written = io.BytesIO()
    logs.configure("json", stream=io.TextIOWrapper(written, write_through=True))
    structlog.configure(cache_logger_on_first_use=False)
    aiohttp_access = logging.getLogger("aiohttp.access")
    aiohttp_access.disabled = True  # the process does not have it
    yield written
    aiohttp_access.disabled = False
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)
