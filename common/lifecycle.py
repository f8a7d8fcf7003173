"""What goes on in a process until its end: background tasks, SIGHUP, and the one deadline of its shutdown."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import attrs
import click
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from common import logs
from common.concurrency import end
from common.settings import FLAGS, command

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
        """Have `listener()` called when the shutdown begins, before what is in flight is waited for."""
        self._listeners.append(listener)

    def begin(self, seconds: float) -> None:
        """Begin the shutdown: what is in flight may take `seconds` more."""
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


Work = Callable[[], Awaitable[None]]
#: A check returns None, or what operators want to know of a part that works; it raises otherwise.
Check = Callable[[], Awaitable[str | None]]


class Degraded(Exception):
    """Raised by a check whose part works worse than it should, so that the process still serves: one sentence that
    operators read in `/-/readiness`. Nothing secret belongs into it."""


class Failed(Exception):
    """Raised by a check whose part does not work: one sentence that operators read in `/-/readiness`."""


#: Seconds until work that ended is started again: the first time, and at most. Work that went on for longer than the
#: latter begins with the former anew.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 30.0


class TaskDown(Degraded):
    """Background work waits to be started again."""


class Passing(Exception):
    """Raised where work ends for a reason that passes by itself, such as a database that is away. It is logged
    without a traceback."""


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
        """Let work that has been told to end do so, without starting it again."""
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
        """End the named work, as far as it runs, and start it again after the block."""
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
        """End all work."""
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
            _log_end(name, problem, is_first=pause == FIRST_PAUSE)
            self._down[name] = _reason(problem)
            problem = None
            try:
                await asyncio.sleep(pause)
            finally:
                self._down.pop(name, None)
            pause = min(2 * pause, longest_pause)


def _reason(problem: BaseException | None) -> str:
    return "it ended" if problem is None else f"{type(problem).__name__}: {problem}".partition("\n")[0]


def _log_end(name: str, problem: BaseException | None, *, is_first: bool) -> None:
    """Log why work has ended, with the traceback at most once: work that keeps ending does so for the same reason."""
    log.error(
        "background work ended and is started again",
        task=name,
        problem=_reason(problem),
        exc_info=problem if is_first and not isinstance(problem, Passing) else None,
    )


BACKGROUND = web.AppKey("background", BackgroundTasks)


class Reloadable(Protocol):
    """Settings, of which the fields in `reloaded` may change while the process runs."""

    reloaded: ClassVar[frozenset[str]]

    @property
    def log_level(self) -> logs.LogLevel: ...


SettingsT = TypeVar("SettingsT", bound=Reloadable)
#: What a part does when it is told of new settings, once all parts have found them right.
Change = Callable[[], Awaitable[None]]
#: Looks at new settings; raises where they cannot be used, with a sentence as the error's text.
Part = Callable[[SettingsT], Change]


class Reload(Generic[SettingsT]):
    """How `settings` become what `read` gives when it is called again. Everybody who holds them sees the new values of
    the fields in `reloaded`; `parts` are those who hold something made of them."""

    def __init__(self, settings: SettingsT, read: Callable[[], SettingsT], *parts: Part[SettingsT]) -> None:
        self._settings = settings
        self._read = read
        self._parts = (*parts, _log_part)

    async def __call__(self) -> None:
        """Never raises because of new settings: where they are wrong, the old ones stay."""
        try:
            fresh = self._read()
            changes = [part(fresh) for part in self._parts]
        except (Exception, SystemExit) as problem:
            log.warning("the settings cannot be read again, the old ones stay", problem=_sentence(problem))
            return
        changed = _differences(self._settings, fresh)
        for name in changed & self._settings.reloaded:
            object.__setattr__(self._settings, name, getattr(fresh, name))
        for change in changes:
            await change()
        log.info(
            "the settings were read again",
            changed=sorted(changed & self._settings.reloaded),
            at_next_start=sorted(changed - self._settings.reloaded),
        )


def reader(settings_class: type[SettingsT], *, section: str, env_prefix: str) -> Callable[[], SettingsT]:
    """Reads what `common.settings.command` with the same arguments has read for this process, which it runs now. What
    is returned raises what that does, and tells nobody."""
    flags = click.get_current_context().meta[FLAGS]

    def read() -> SettingsT:
        found: list[SettingsT] = []
        again = command(settings_class, section=section, env_prefix=env_prefix, run=found.append)
        with again.make_context(section, list(flags)) as context:
            again.invoke(context)
        return found[0]

    return read


@contextlib.asynccontextmanager
async def reloading(background: BackgroundTasks, reload: Reload[Any]) -> AsyncIterator[None]:
    """SIGHUP reloads for the length of the block."""
    wanted = asyncio.Event()

    async def obey() -> None:
        while True:
            await wanted.wait()
            wanted.clear()
            await reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, wanted.set)
    background.start("reloading", obey)
    try:
        yield
    finally:
        ignore_hangups()


def ignore_hangups() -> None:
    """SIGHUP does not end the process while there is nothing to reload, nor are its children made to ignore it."""
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)


def _log_part(settings: Reloadable) -> Change:
    reopen = logs.reopening()

    async def change() -> None:
        logs.set_level(settings.log_level)
        reopen()

    return change


def _differences(old: Any, new: Any) -> set[str]:
    return {
        field.name
        for field in attrs.fields(type(old))
        if getattr(old, field.name) != getattr(new, field.name)
    }


def _sentence(problem: BaseException) -> str:
    text = problem.format_message() if isinstance(problem, click.ClickException) else str(problem)
    return f"{type(problem).__name__}: {text}"
