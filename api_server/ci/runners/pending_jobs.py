"""Waking runners that wait for a job: one connection listens for the whole process, and each notice reaches them all.

The notice only says that there may be something; who gets it is decided in the database. So a notice that is lost
(a broken connection) costs a runner the rest of its wait, and nothing else.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from api_server.state.listening import listening_connection
from common.background import BackgroundTasks

CHANNEL = "jobs_pending"
LISTENER = "listening for jobs"
#: Seconds until a lost connection is made again, at most.
RECONNECT_AFTER = 1.0


class PendingJobs:
    """Tells when jobs have become pending."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._closed = self._all_leave = False
        #: Counts notices; as `last_update` it tells a runner whether anything has happened since its last poll.
        self.generation = 0

    def announce(self) -> None:
        """Wakes everybody who waits."""
        self.generation += 1
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def after(self, generation: int, seconds: float) -> bool:
        """Waits until there are more notices than `generation`: False where `seconds` went by without."""
        if self._closed or self._all_leave:
            return False
        if self.generation == generation:
            try:
                await asyncio.wait_for(self._news.wait(), seconds)
            except TimeoutError:
                return False
        return not (self._closed or self._all_leave)

    def close(self) -> None:
        """Sends everybody home, now and from now on."""
        self._closed = True
        self.announce()

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """Everybody is sent home, for the length of the block."""
        self._all_leave = True
        self.announce()
        try:
            yield
        finally:
            self._all_leave = False

    @asynccontextmanager
    async def listening(self, database_url: str, background: BackgroundTasks) -> AsyncIterator[None]:
        """Hears the notices of all processes for the length of the block."""
        background.start(LISTENER, lambda: self._listen(database_url), longest_pause=RECONNECT_AFTER)
        try:
            yield
        finally:
            await background.finish(LISTENER, 0)

    async def _listen(self, database_url: str) -> None:
        """Raises `Unavailable` when the connection is lost."""
        async with listening_connection(database_url, CHANNEL) as connection:
            self.announce()  # whatever happened while nobody listened
            while True:
                await connection.notification()
                self.announce()
