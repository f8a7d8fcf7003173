"""Log lines in tests: where they go, and those of one part while others of the same process write theirs too."""

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
    """Writes to the standard output that the process began with, and knows whose lines they are. What a test puts in
    the place of `sys.stdout` for a moment, to see what a command prints, is not meant for the servers beside it."""

    def __init__(self, name: str = "") -> None:
        super().__init__(sys.__stdout__)
        self.name = name


_listened_to = contextvars.ContextVar("_listened_to", default=False)


@contextlib.contextmanager
def lines_of_this_test() -> Iterator[list[EventDict]]:
    """What is logged by what the block calls, and by servers that it starts; not by those that were there before."""
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
    """What is logged for the length of the block, but by API servers: the one that all tests of a process share goes
    on with what earlier tests have left it to do."""
    with capture_logs(processors=[_drop_those_of_api_servers]) as lines:
        yield lines


def _drop_those_of_api_servers(logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    if logger.name.startswith("api_server"):
        raise structlog.DropEvent
    return event


@contextlib.contextmanager
def log_as_written() -> Iterator[io.BytesIO]:
    """The log of all servers as the process writes it, for the length of the block."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    written = io.BytesIO()
    logs.configure("json", stream=io.TextIOWrapper(written, write_through=True))
    structlog.configure(cache_logger_on_first_use=False)
    aiohttp_access = logging.getLogger("aiohttp.access")
    aiohttp_access.disabled = True  # the process has none
    yield written
    aiohttp_access.disabled = False
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)
