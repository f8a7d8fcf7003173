"""A watchdog of the event loop: while the service computes on it, all other requests have to wait.

Each callback of the loop is measured in processor time of its thread, which does not depend on the load of the
machine, without the time of Python's garbage collector. Meanwhile a thread looks at callbacks that run for long. A
callback that took too long counts if the service's own code ran in it. Code of a test on the same loop does not count,
nor do start, stop and first imports.
"""

import asyncio
import faulthandler
import gc
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import attrs

ROOT = str(Path(__file__).parents[2]) + "/"
_SERVICE = ("api_server/", "storage_edge/", "common/")
#: Seconds between two looks. A callback that is seen in two consecutive looks is noted.
_INTERVAL = 0.015

#: Seconds of the processor in which a machine of usual speed counts to a million.
_USUAL = 0.04
#: A frame in the format of `faulthandler`.
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)

Stack = tuple[str, ...]
#: The function that the loop calls for each callback.
Run = Callable[[asyncio.Handle], None]


@attrs.frozen
class Held:
    """A callback that took `seconds` of processor time, and one stack that was seen in it, outermost first."""

    seconds: float
    stack: Stack

    def __str__(self) -> str:
        return f"{self.seconds * 1000:.0f} ms in one go on the event loop:\n  " + "\n  ".join(self.stack)


def is_service(stack: Stack) -> bool:
    """Return whether the service's own code ran, unless a test called it directly."""
    if any("importlib._bootstrap" in frame for frame in stack):
        return False
    inside = [frame.removeprefix(ROOT) for frame in stack if frame.startswith(ROOT)]
    ours = [frame for frame in inside if not frame.startswith(".venv/")]
    return bool(ours) and ours[0].startswith(_SERVICE)


def slowness() -> float:
    """Return how many times as long as on a machine of usual speed work takes here and now, at least 1: processors
    share their parts with each other, and machines with other machines."""
    return max(1.0, *(_counting() / _USUAL for _ in range(5)))


def _counting() -> float:
    began, number = time.thread_time(), 0
    while number < 1_000_000:
        number += 1
    return time.thread_time() - began


class Watchdog:
    """A watchdog of the loops of the thread that creates it. `limit` is in seconds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.held: list[Held] = []
        self._thread = threading.get_ident()
        self._number = 0  # of the current callback, odd while one runs
        self._seen: tuple[int, Stack] = (0, ())
        self._collecting = 0.0  # seconds of the garbage collector
        self._collection_began = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        original = asyncio.events.Handle._run
        asyncio.events.Handle._run = self._measured(original)  # type: ignore[method-assign, assignment]
        gc.callbacks.append(self._collected)
        ended = threading.Event()
        looking = threading.Thread(target=self._look, args=(ended,), daemon=True)
        looking.start()
        try:
            yield
        finally:
            asyncio.events.Handle._run = original  # type: ignore[method-assign]
            gc.callbacks.remove(self._collected)
            ended.set()
            looking.join()

    def taken(self) -> list[Held]:
        """Return the callbacks that were too long since the last call."""
        held, self.held = self.held, []
        return held

    def _measured(self, run: Run) -> Run:
        thread_time, clock, ident = time.thread_time, time.perf_counter, threading.get_ident

        def measured(handle: asyncio.Handle) -> None:
            if ident() != self._thread or self._number % 2:
                return run(handle)
            began, used, collecting = clock(), thread_time(), self._collecting
            self._number += 1
            try:
                return run(handle)
            finally:
                self._number += 1
                if clock() - began > self.limit:
                    self._judge(thread_time() - used - (self._collecting - collecting))

        return measured

    def _judge(self, seconds: float) -> None:
        number, stack = self._seen
        if seconds > self.limit and number == self._number - 1 and is_service(stack):
            self.held.append(Held(seconds, stack))

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:  # the collector may run in any thread
            return
        if phase == "start":
            self._collection_began = time.thread_time()
        else:
            self._collecting += time.thread_time() - self._collection_began

    def _look(self, ended: threading.Event) -> None:
        before = 0
        with tempfile.TemporaryFile(buffering=0) as file:
            while not ended.wait(_INTERVAL):
                number = self._number
                if number % 2 and number == before:
                    stack = _stack(self._thread, file)
                    if self._number == number and (self._seen[0] != number or is_service(stack)):
                        self._seen = (number, stack)
                before = number


def _stack(thread: int, file: IO[bytes]) -> Stack:
    """Return the frames of a thread below the loop, outermost first. `file` is overwritten.

    On a busy machine the thread may go on while Python code looks at its frames, which has crashed the interpreter;
    `faulthandler` prevents this.
    """
    file.seek(0)
    file.truncate()
    faulthandler.dump_traceback(file)
    file.seek(0)
    _, _, own = file.read().decode(errors="replace").partition(f"hread 0x{thread:016x} ")
    frames = []
    for path, line, name in _FRAME.findall(own.partition("\n\n")[0]):
        if path == __file__:
            break
        frames.append(f"{path}:{line} in {name}")
    return tuple(reversed(frames))
