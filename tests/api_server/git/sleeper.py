"""A git process that does nothing for long, for tests of how it ends."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

from tests.support.waiting import until


@attrs.frozen
class Sleeper:
    """A git process that starts two long sleeps, whose length distinguishes them from others."""

    seconds: str = attrs.Factory(lambda: f"987.{os.getpid()}{time.monotonic_ns()}")

    @property
    def configuration(self) -> list[tuple[str, str]]:
        return [("alias.sleeper", f"!sleep {self.seconds} & sleep {self.seconds}")]

    async def gone(self) -> None:
        """Wait until nothing of it runs: processes that git has left behind are reaped a moment later."""
        await until(lambda: not self.running())

    def running(self) -> int:
        """Return the number of its running sleeps."""
        wanted = f"sleep\0{self.seconds}\0".encode()
        return sum(command == wanted for command in _commands())

    def left(self) -> list[bytes]:
        """Return the environments of all its processes: git, its shell and its sleeps."""
        return [command for command in _commands("environ") if self.seconds.encode() in command]


def _commands(file: str = "cmdline") -> Iterator[bytes]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            yield (folder / file).read_bytes()
