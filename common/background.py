"""Work that goes on for as long as the process lives, whatever happens to it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from common.ending import end
from common.operations import Degraded

log = structlog.get_logger(__name__)

Work = Callable[[], Awaitable[None]]

#: Seconds until work that ended is started again: the first time, and at most. Work that went on for longer than the
#: latter begins with the former anew.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 30.0


class TaskDown(Degraded):
    """Work that should go on does not, just now."""


class Passing(Exception):
    """What ends work and passes by itself, such as a database that is away; nobody wants to see where it was met."""


class BackgroundTasks:
    """The long-running tasks of a process. What ends, for whatever reason, is logged, counted and started again."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._restarts = Counter(
            "background_task_restarts",
            "Times that work which should never end had to be started again.",
            ["task"],
            registry=registry,
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._works: dict[str, tuple[Work, float]] = {}
        #: What waits to be started again, and why it ended.
        self._down: dict[str, str] = {}
        self._finishing: set[str] = set()

    def start(self, name: str, work: Work, *, longest_pause: float = LONGEST_PAUSE) -> None:
        """Runs `work()`, which never returns; `name` is for logs and metrics. What depends on a server that comes back
        by itself wants to be there soon afterwards: `longest_pause` is in seconds."""
        self._restarts.labels(name)  # shown as 0 until then
        self._works[name] = work, longest_pause
        self._tasks[name] = asyncio.create_task(self._keep_up(name, work, longest_pause), name=name)

    def let_end(self, name: str) -> None:
        """Work that has been told to end may do so; it is not started again."""
        self._finishing.add(name)

    async def finish(self, name: str, seconds: float) -> None:
        """Waits for the end of work that has been told to end; where that takes longer than `seconds`, it is
        cancelled."""
        self.let_end(name)
        task = self._tasks.pop(name)
        if name not in self._down:
            await asyncio.wait({task}, timeout=seconds)
        await end(task)

    @contextlib.asynccontextmanager
    async def paused(self, *names: str) -> AsyncIterator[None]:
        """Ends some of it, as far as it goes on, and begins it anew after the block."""
        going_on = [name for name in names if name in self._tasks and name not in self._finishing]
        await end(*(self._tasks[name] for name in going_on))
        try:
            yield
        finally:
            for name in going_on:
                if name in self._tasks and name not in self._finishing:
                    work, longest_pause = self._works[name]
                    self.start(name, work, longest_pause=longest_pause)

    async def close(self) -> None:
        """Ends all of it."""
        await end(*self._tasks.values())
        self._tasks.clear()

    @property
    def down(self) -> dict[str, str]:
        """The names of what waits to be started again, with the reason in one line."""
        return dict(self._down)

    async def check(self) -> None:
        """Readiness; raises `TaskDown` with the names of what waits to be started again."""
        if self._down:
            raise TaskDown(f"Waits to be started again: {', '.join(sorted(self._down))}")

    async def _keep_up(self, name: str, work: Work, longest_pause: float) -> None:
        """What goes wrong on the way out can hide the cancellation; the task remembers that it was asked to end."""
        this, loop, pause = asyncio.current_task(), asyncio.get_running_loop(), FIRST_PAUSE
        while this is not None and not this.cancelling():
            begun, problem = loop.time(), None
            try:
                await work()
            except (Exception, asyncio.CancelledError) as error:  # cancelled by whom it waited for, not by us
                problem = error
            if this.cancelling() or name in self._finishing:
                return
            if loop.time() - begun > longest_pause:
                pause = FIRST_PAUSE
            self._restarts.labels(name).inc()
            _tell(name, problem, is_first=pause == FIRST_PAUSE)
            self._down[name] = _reason(problem)
            problem = None
            try:
                await asyncio.sleep(pause)
            finally:
                self._down.pop(name, None)
            pause = min(2 * pause, longest_pause)


def _reason(problem: BaseException | None) -> str:
    return "it ended" if problem is None else f"{type(problem).__name__}: {problem}".partition("\n")[0]


def _tell(name: str, problem: BaseException | None, *, is_first: bool) -> None:
    """With the traceback once, if at all: what keeps ending does so for the same reason."""
    log.error(
        "background work ended and is started again",
        task=name,
        problem=_reason(problem),
        exc_info=problem if is_first and not isinstance(problem, Passing) else None,
    )


BACKGROUND = web.AppKey("background", BackgroundTasks)
