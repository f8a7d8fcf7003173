"""Detection of code that blocks the event loop and makes all clients wait.

A timer of the loop measures its own delay, which costs 20 turns of the loop per second and nothing for each
callback. While it is overdue, a thread looks at the running code. It also sees a call that holds the interpreter's
lock: the thread gets the lock as soon as the call returns, before the loop continues.
"""

import asyncio
import contextlib
import inspect
import operator
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

import attrs
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from common.concurrency import end
from common.logs import ThrottledLog
from common.measures import Durations
from common.workers import Figures

#: Seconds for which the loop may be blocked.
ALLOWED_SECONDS: Final = 0.1
#: Seconds between two measurements, and between two samples of the code that blocks the loop.
_INTERVAL, _SAMPLE_INTERVAL = 0.05, 0.02
#: Seconds between two lines about the same route.
_LOG_SECONDS = 60.0
#: Seconds for which the longest step is stored.
REMEMBERED_SECONDS: Final = 3600.0
#: The family of `LoopWatch.longest`, which is not among the metrics because it names routes and projects.
LONGEST: Final = "event_loop_longest"
_BOUNDS = (0.2, 0.5, 1.0, 2.0, 5.0, 20.0)
#: Characters of a project's path that are logged.
_PROJECT_LENGTH = 255
_ROOT = str(Path(__file__).parents[1]) + "/"
_OWN_FOLDERS = tuple(f"{_ROOT}{part}/" for part in ("api_server", "storage_edge", "common"))


@attrs.frozen
class LoopStall:
    """A time in which the loop was blocked: until `end` (seconds of the loop's clock), for `seconds`, in which the
    process has computed for `cpu_seconds`. `route`, `project` and `code` are empty if it is not known what ran."""

    end: float
    seconds: float
    cpu_seconds: float
    route: str = ""
    project: str = ""
    code: str = ""

    @property
    def is_ours(self) -> bool:
        """Return whether this process itself has computed for long, instead of waiting for the machine or a disk."""
        return self.cpu_seconds > ALLOWED_SECONDS

    def __str__(self) -> str:
        subject = self.route or "something without a route"
        project = f" of {self.project}" if self.project else ""
        code = f" in {self.code}" if self.code else ""
        return f"{subject}{project} held the event loop for {self.seconds:.1f} s{code}"


@attrs.frozen
class _Sample:
    """The code that ran at one moment: a task or a callback, its request, and the place in our code."""

    work: object
    request: web.BaseRequest | None
    code: str


class LoopWatch:
    """A watch on the event loop in which `watching` is entered."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._durations = Durations(
            "event_loop_held_seconds",
            "Seconds for which the event loop was held, where that were more than 0.1.",
            bounds=_BOUNDS,
        )
        registry.register(self._durations)
        self._log = ThrottledLog(structlog.get_logger(__name__), _LOG_SECONDS)
        self._due = float("inf")
        self._samples: list[_Sample] = []
        #: The latest is at the end. Steps that are shorter than a later one are removed.
        self._longest: deque[LoopStall] = deque()

    def longest(self) -> Figures:
        """Return the longest step of the last hour in the form in which workers exchange metrics."""
        remembered = time.monotonic() - REMEMBERED_SECONDS
        stall = next((step for step in list(self._longest) if step.end >= remembered), None)
        samples = (
            [] if stall is None else [(LONGEST, {"at": str(stall.end), "what": str(stall)}, stall.seconds)]
        )
        return {LONGEST: ("gauge", "", samples)}

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch the event loop for the duration of the block."""
        ended, loop = threading.Event(), asyncio.get_running_loop()
        thread = threading.Thread(
            target=self._sample, args=(ended, loop, threading.get_ident()), name="loop watch", daemon=True
        )
        thread.start()
        measuring = asyncio.create_task(self._measure())
        try:
            yield
        finally:
            await end(measuring)
            ended.set()
            thread.join()

    async def _measure(self) -> None:
        while True:
            computed = time.process_time()
            self._due = time.monotonic() + _INTERVAL
            await asyncio.sleep(_INTERVAL)
            now = time.monotonic()
            delay, samples, self._samples = now - self._due, self._samples, []
            if delay > ALLOWED_SECONDS:
                self._record(LoopStall(now, delay, time.process_time() - computed, *_described(samples)))

    def _record(self, stall: LoopStall) -> None:
        self._durations.observe(stall.seconds)
        if not stall.is_ours:
            return
        while self._longest and self._longest[-1].seconds <= stall.seconds:
            self._longest.pop()
        while self._longest and stall.end - self._longest[0].end > REMEMBERED_SECONDS:
            self._longest.popleft()
        self._longest.append(stall)
        self._log.warning(
            "the event loop was held",
            about=stall.route,
            route=stall.route or None,
            project=stall.project or None,
            code=stall.code or None,
            ms=round(stall.seconds * 1000),
            cpu_ms=round(stall.cpu_seconds * 1000),
        )

    def _sample(self, ended: threading.Event, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        pause = _INTERVAL
        while not ended.wait(pause):
            pause = _INTERVAL
            if time.monotonic() > self._due + _SAMPLE_INTERVAL:
                pause = _SAMPLE_INTERVAL
                self._samples.append(_sample(asyncio.current_task(loop), sys._current_frames().get(thread)))


def _sample(task: "asyncio.Task[object] | None", frame: FrameType | None) -> _Sample:
    frames = list(_outwards(frame))
    request = next((candidate for outer in frames if (candidate := _request_in(outer)) is not None), None)
    own_frame = next((outer for outer in frames if outer.f_code.co_filename.startswith(_OWN_FOLDERS)), None)
    code = ""
    if own_frame is not None:
        code = f"{own_frame.f_code.co_filename.removeprefix(_ROOT)}:{own_frame.f_lineno} ({own_frame.f_code.co_name})"
    return _Sample(task or (frames[-1].f_code if frames else None), request, code)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _request_in(frame: FrameType) -> web.BaseRequest | None:
    names = frame.f_locals
    request = next((value for value in names.values() if isinstance(value, web.BaseRequest)), None)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        names.clear()  # the frame keeps this copy with all its values, a connection's frame as long as that is open
    return request


def _described(samples: list[_Sample]) -> tuple[str, str, str]:
    """Return route, project and code of the work that ran at more than half of the samples, otherwise empty texts: many
    short steps have no single cause."""
    by_work: dict[int, list[_Sample]] = {}
    for sample in samples:
        by_work.setdefault(id(sample.work), []).append(sample)
    longest = max(by_work.values(), key=len, default=[])
    if 2 * len(longest) <= len(samples):
        return "", "", ""
    request = next((sample.request for sample in longest if sample.request is not None), None)
    route, project = ("", "") if request is None else (route_of(request), _project_of(request))
    return route, project, longest[-1].code


def route_of(request: web.BaseRequest) -> str:
    """Return method and path of the route, which contain nothing that clients choose. Return an empty text without a
    route."""
    match = getattr(request, "match_info", None)
    resource = None if match is None else match.route.resource
    return "" if resource is None else f"{request.method} {resource.canonical}"


def _project_of(request: web.BaseRequest) -> str:
    """Return the project's id or path as in the URL."""
    match = getattr(request, "match_info", None) or {}
    if "/projects/{id}" in route_of(request):
        return str(match.get("id", ""))[:_PROJECT_LENGTH]
    project = match.get("project") or match.get("path", "").partition("/-/")[0]
    return str(project)[:_PROJECT_LENGTH]


def longest_step(figures: Iterable[Figures]) -> str | None:
    """Return the longest step of all workers in one sentence for readiness, or None."""
    steps = [sample for metrics in figures if LONGEST in metrics for sample in metrics[LONGEST][2]]
    if not steps:
        return None
    _, labels, _ = max(steps, key=operator.itemgetter(2))
    return f"{(time.monotonic() - float(labels['at'])) / 60:.0f} minutes ago {labels['what']}"


LOOP_WATCH = web.AppKey("loop_watch", LoopWatch)
