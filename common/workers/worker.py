"""One worker, as its supervisor knows it."""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable
from typing import Any

from common.workers.figures import Figures
from common.workers.line import ASKED, FIGURES, READY, WANTED, message, received

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

#: Seconds in which a successor has to be ready; migrations are made by the first of all.
READY_SECONDS = 120.0
#: Seconds in which a worker says what it has counted; otherwise what it said last has to do.
FIGURES_SECONDS = 1.0


class Worker:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process, line: Streams, section: int) -> None:
        self.process = process
        self.section = section
        self.began = time.monotonic()
        #: Held as long as the worker is: its end is the worker's.
        self._reader, self.writer = line
        self.ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.ensure_future(process.wait())
        #: What it has counted when it last said so.
        self.figures: Figures = {}
        self._said = asyncio.Event()

    async def listen(self, asked: Callable[["Worker"], None]) -> None:
        """Until it ends. `asked` is called when it wants what others have counted."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                letter, content = await received(self._reader)
                if letter == READY and not self.ready.done():
                    self.ready.set_result(True)
                elif letter in (FIGURES, ASKED):
                    self.figures = json.loads(content)
                    self._said.set()
                if letter == ASKED:
                    asked(self)
        if not self.ready.done():
            self.ready.set_result(False)

    async def say_figures(self) -> None:
        """Has it say what it has counted, where it does so in time."""
        self._said.clear()
        self.writer.write(message(WANTED))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIGURES_SECONDS):
                await self._said.wait()

    @property
    def serves(self) -> bool:
        """Whether it has been ready."""
        return self.ready.done() and self.ready.result()

    async def is_ready(self) -> bool:
        """Waits until it is; False where it ends, or takes too long."""
        either: set[asyncio.Future[Any]] = {self.ready, self.ended}
        await asyncio.wait(either, timeout=READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return self.serves and not self.ended.done()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
