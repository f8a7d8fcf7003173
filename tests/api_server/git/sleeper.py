"""A git that does nothing for long, for tests of how it ends."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

from tests.support.waiting import until


@attrs.frozen
class Sleeper:
    """A git that starts two long sleeps, told apart from others' by their length."""

    seconds: str = attrs.Factory(lambda: f"987.{os.getpid()}{time.monotonic_ns()}")

    @property
    def configuration(self) -> list[tuple[str, str]]:
        return [("alias.sleeper", f"!sleep {self.seconds} & sleep {self.seconds}")]

    async def gone(self) -> None:
        """Once nothing of it runs: whom git has left behind is reaped by somebody else, a moment later."""
        await until(lambda: not self.running())

    def running(self) -> int:
        """How many of its sleeps there are."""
        wanted = f"sleep\0{self.seconds}\0".encode()
        return sum(command == wanted for command in _commands())

    def left(self) -> list[bytes]:
        """All that there is of it: git, its shell and its sleeps, by what they were started with."""
        return [command for command in _commands("environ") if self.seconds.encode() in command]


def _commands(file: str = "cmdline") -> Iterator[bytes]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            yield (folder / file).read_bytes()
