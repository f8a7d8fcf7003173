"""The end of a process: one deadline for everything that is still going on in it."""

import asyncio
import os
import threading
from collections.abc import Callable

import structlog
from aiohttp import web

log = structlog.get_logger(__name__)

#: Seconds beyond the deadline in which what was cut off lets go of what it holds; the process then ends even so.
LAST_SECONDS = 4.0


class Shutdown:
    """Whether the application is being shut down, and how long what is in flight may still take."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def has_begun(self) -> bool:
        """Whether the application takes nothing new any more."""
        return self._deadline is not None

    @property
    def left(self) -> float:
        """Seconds until what is in flight is cut off, 0 where nothing may be in flight."""
        if self._deadline is None:
            return 0.0
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    def at_begin(self, listener: Callable[[], None]) -> None:
        """`listener()` is called when nothing new is to be begun any more; what has begun is waited for later."""
        self._listeners.append(listener)

    def begin(self, seconds: float) -> None:
        """What is in flight may take so many seconds more."""
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + seconds
            for listener in self._listeners:
                listener()


SHUTDOWN = web.AppKey("shutdown", Shutdown)


def end_for_certain(seconds: float) -> None:
    """Ends the process in `seconds` whatever still runs in it: a thread that works cannot be told to stop. Nothing is
    lost by that which a crash would not lose too."""

    def end() -> None:
        log.error("the process did not end in time and is ended", seconds=seconds)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
