"""A gate that can be closed for a while: who has passed comes to an end first, who comes meanwhile waits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator


class Gate:
    """Open, until somebody closes it."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._inside = 0

    @contextlib.asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Is inside for the length of the block, which begins when the gate is open."""
        await self._open.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Nobody comes in for the length of the block; one block at a time."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def empty(self) -> None:
        """Waits until nobody is inside."""
        await self._empty.wait()
