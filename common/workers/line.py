"""What a worker and its supervisor say to each other, on a socket whose ends they hold: the worker that it is ready,
both that metrics are wanted, and what they are. The end of the one shows the other that it is gone.

A message is a letter, the length of what follows (four bytes), and that.
"""

import asyncio
import contextlib
import functools
import json
import socket
from collections.abc import Callable

from common.workers.figures import Figures
from common.workers.place import place

#: Of a worker: it serves. Of the supervisor: metrics are wanted, which the worker answers with `FIGURES`; it sends them
#: unasked when it ends. Of a worker: its own, and it wants those of all others, which is answered with `OTHERS`.
READY, WANTED, FIGURES, ASKED, OTHERS = b"r", b"w", b"f", b"a", b"o"
#: Seconds for which a worker waits for those of others; the supervisor waits for less.
PATIENCE = 3.0


def message(letter: bytes, content: bytes = b"") -> bytes:
    """As it is sent."""
    return letter + len(content).to_bytes(4) + content


async def received(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Letter and content. Raises IncompleteReadError or OSError at the end."""
    letter, length = await reader.readexactly(1), int.from_bytes(await reader.readexactly(4))
    return letter, await reader.readexactly(length)


class Line:
    """A worker's end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writer: asyncio.StreamWriter | None = None
        self._asking = asyncio.Lock()
        self._others: asyncio.Future[bytes] | None = None
        #: What this process has counted; called in a thread.
        self.figures: Callable[[], Figures] | None = None

    async def listen(self) -> None:
        """Until the supervisor is gone."""
        reader, self._writer = await asyncio.open_connection(sock=socket.socket(fileno=self._descriptor))
        self._writer.transport.set_write_buffer_limits(0)  # `drain` waits until all is sent
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                letter, content = await received(reader)
                if letter == WANTED:
                    await self.tell_figures()
                elif letter == OTHERS and self._others is not None and not self._others.done():
                    self._others.set_result(content)

    async def tell_figures(self) -> None:
        """What has been counted, as far as it is known yet. A supervisor that is gone need not know."""
        if self.figures is not None:
            await self._send(FIGURES, await asyncio.to_thread(self.figures))

    async def others(self, own: Figures) -> list[Figures]:
        """What all other workers have counted, and those that have ended; `own` is for others who ask. Raises
        TimeoutError where the supervisor does not answer."""
        async with self._asking:
            self._others = asyncio.get_running_loop().create_future()
            await self._send(ASKED, own)
            async with asyncio.timeout(PATIENCE):
                found: list[Figures] = json.loads(await self._others)
        return found

    async def _send(self, letter: bytes, figures: Figures) -> None:
        if self._writer is not None:
            self._writer.write(message(letter, json.dumps(figures).encode()))
            with contextlib.suppress(OSError):
                await self._writer.drain()


@functools.cache
def line() -> Line | None:
    """This worker's; None where a process serves alone."""
    mine = place()
    return None if mine is None else Line(mine.line)
