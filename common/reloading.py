"""SIGHUP: the settings are read again, from where they were read at the start. What is in flight is not touched."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import attrs
import click
import structlog

from common import logs
from common.background import BackgroundTasks
from common.settings import FLAGS, command

log = structlog.get_logger(__name__)


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
        self._parts = (*parts, _log)

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


def _log(settings: Reloadable) -> Change:
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
