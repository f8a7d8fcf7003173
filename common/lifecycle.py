"""The long-running parts of a process: background tasks, the reload on SIGHUP, and the deadline of the shutdown."""

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

#: Seconds beyond the deadline in which cancelled work has to release what it holds. Then the process ends in any
#: case.
LAST_SECONDS = 4.0


class Shutdown:
    """The state of the application's shutdown, and the time that open work may still take."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def has_begun(self) -> bool:
        """Return whether the application accepts no new work any more."""
        return self._deadline is not None

    @property
    def seconds_left(self) -> float:
        """Return the seconds until open work is cancelled; 0 if none may be open."""
        if self._deadline is None:
            return 0.0
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    def at_begin(self, listener: Callable[[], None]) -> None:
        """Call `listener()` when the shutdown begins, before open work is waited for."""
        self._listeners.append(listener)

    def begin(self, seconds: float) -> None:
        """Begin the shutdown. Open work may take `seconds` more."""
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + seconds
            for listener in self._listeners:
                listener()


SHUTDOWN = web.AppKey("shutdown", Shutdown)


def end_for_certain(seconds: float) -> None:
    """End the process in `seconds`, whatever still runs in it, because threads cannot be stopped. Nothing is lost
    that a crash would not lose, too."""

    def end() -> None:
        log.error("the process did not end in time and is killed", seconds=seconds)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


Work = Callable[[], Awaitable[None]]
#: A check returns None, or a remark for operators about a part that works. It raises otherwise.
Check = Callable[[], Awaitable[str | None]]


class Degraded(Exception):
    """A check's part works worse than it should, and the process still serves. The text is one sentence that
    operators read in `/-/readiness`; it must not contain secrets."""


class Failed(Exception):
    """A check's part does not work. The text is one sentence that operators read in `/-/readiness`."""


#: Seconds until ended work is started again: the first time, and at most. After work that lasted longer than the
#: maximum, the pauses begin again with the first.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 30.0


class TaskDown(Degraded):
    """Background work waits to be started again."""


class Passing(Exception):
    """Work ends for a reason that passes by itself, such as an unreachable database. It is logged without a
    traceback."""


class BackgroundTasks:
    """The long-running tasks of a process. A task that ends, for whatever reason, is logged, counted and started
    again."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._restarts = Counter(
            "background_task_restarts",
            "Times that work which should never end had to be started again.",
            ["task"],
            registry=registry,
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._works: dict[str, tuple[Work, float]] = {}
        #: The tasks that wait to be started again, and why they ended.
        self._down: dict[str, str] = {}
        self._finishing: set[str] = set()
        self._log = logs.ThrottledLog(log, seconds=60)

    def start(self, name: str, work: Work, *, longest_pause: float = LONGEST_PAUSE) -> None:
        """Run `work()`, which never returns. `name` is for logs and metrics. `longest_pause`, in seconds, is short
        for work that depends on a server which comes back by itself."""
        self._restarts.labels(name)  # so that the metric shows 0 until then
        self._works[name] = work, longest_pause
        self._tasks[name] = asyncio.create_task(self._keep_up(name, work, longest_pause), name=name)

    def let_end(self, name: str) -> None:
        """Do not restart the work when it ends, because it has been asked to."""
        self._finishing.add(name)

    async def finish(self, name: str, seconds: float) -> None:
        """Wait for the end of work that has been asked to end. Cancel it if that takes longer than `seconds`."""
        self.let_end(name)
        task = self._tasks.pop(name)
        if name not in self._down:
            await asyncio.wait({task}, timeout=seconds)
        await end(task)

    @contextlib.asynccontextmanager
    async def paused(self, *names: str) -> AsyncIterator[None]:
        """End the named work, if it runs, and start it again after the block."""
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
        """Return the names of tasks that wait to be started again, each with the reason in one line."""
        return dict(self._down)

    async def check(self) -> None:
        """Check readiness. Raise `TaskDown` with the names of tasks that wait to be started again."""
        if self._down:
            raise TaskDown(f"Waits to be started again: {', '.join(sorted(self._down))}")

    async def _keep_up(self, name: str, work: Work, longest_pause: float) -> None:
        """Run the work again and again. An error while it ends can hide the cancellation; the task remembers that it
        was asked to end."""
        this, loop, pause = asyncio.current_task(), asyncio.get_running_loop(), FIRST_PAUSE
        while this is not None and not this.cancelling():
            started_at, problem = loop.time(), None
            try:
                await work()
            except (Exception, asyncio.CancelledError) as error:  # the work may be cancelled by others, too
                problem = error
            if this.cancelling() or name in self._finishing:
                return
            if loop.time() - started_at > longest_pause:
                pause = FIRST_PAUSE
            self._restarts.labels(name).inc()
            self._log_end(name, problem, is_first=pause == FIRST_PAUSE)
            self._down[name] = _reason(problem)
            problem = None
            try:
                await asyncio.sleep(pause)
            finally:
                self._down.pop(name, None)
            pause = min(2 * pause, longest_pause)

    def _log_end(self, name: str, problem: BaseException | None, *, is_first: bool) -> None:
        """Log why work has ended, once a minute for the same reason. The traceback is logged once."""
        self._log.error(
            "background work ended and is started again",
            about=(name, _reason(problem)),
            task=name,
            problem=_reason(problem),
            exc_info=problem if is_first and not isinstance(problem, Passing) else None,
        )


def _reason(problem: BaseException | None) -> str:
    return "it ended" if problem is None else f"{type(problem).__name__}: {problem}".partition("\n")[0]


BACKGROUND = web.AppKey("background", BackgroundTasks)


class Reloadable(Protocol):
    """Settings of which the fields in `reloaded` may change while the process runs."""

    reloaded: ClassVar[frozenset[str]]

    @property
    def log_level(self) -> logs.LogLevel: ...


SettingsT = TypeVar("SettingsT", bound=Reloadable)
#: A function that applies new settings in a part, after all parts have accepted them.
Change = Callable[[], Awaitable[None]]
#: A function that examines new settings and returns how to apply them, or raises an error if they cannot be used.
Part = Callable[[SettingsT], Change]


class Reload(Generic[SettingsT]):
    """A reload of the fields in `reloaded` of `settings`, with the values that `read` returns. All holders of the
    settings see the new values. `parts` hold objects that were created from settings."""

    def __init__(self, settings: SettingsT, read: Callable[[], SettingsT], *parts: Part[SettingsT]) -> None:
        self._settings = settings
        self._read = read
        self._parts = (*parts, _log_part)

    async def __call__(self) -> None:
        """Reload. Invalid settings raise nothing: the old ones stay."""
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
    """Return a function that reads the settings again which `common.settings.command` has read for this process with
    the same arguments. It raises the same errors, without printing them."""
    flags = click.get_current_context().meta[FLAGS]

    def read() -> SettingsT:
        settings: list[SettingsT] = []
        again = command(settings_class, section=section, env_prefix=env_prefix, run=settings.append)
        with again.make_context(section, list(flags)) as context:
            again.invoke(context)
        return settings[0]

    return read


@contextlib.asynccontextmanager
async def reloading(background: BackgroundTasks, reload: Reload[Any]) -> AsyncIterator[None]:
    """Reload on SIGHUP during the block."""
    hangup = asyncio.Event()

    async def obey() -> None:
        while True:
            await hangup.wait()
            hangup.clear()
            await reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hangup.set)
    background.start("reloading", obey)
    try:
        yield
    finally:
        ignore_hangups()


def ignore_hangups() -> None:
    """Ignore SIGHUP while there is nothing to reload. Children do not inherit that."""
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
