"""Calling runners that wait for a job: one connection listens for the whole process, and whoever may take what waits is
called, one or a few at a time.

A notice names a project. One statement finds which of those that wait here may take a job of it, however many they
are; the one that has waited longest is called and asks for itself, and while jobs are taken, the next. Who gets a job
is decided in the database. So a notice that is lost (a broken connection) costs a runner the rest of its wait, and
nothing else.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from api_server.state.listening import listening_connection
from common.lifecycle import BackgroundTasks

CHANNEL = "jobs_pending"
LISTENER = "listening for jobs"
CALLER = "calling runners"
#: Seconds until a lost connection is made again, at most.
RECONNECT_AFTER = 1.0
#: Runners that are called at a time, where those before have got jobs.
CALLED_AT_A_TIME = 3
#: Seconds after which others are called where one got nothing: another process may be about to take the job. Then
#: twice as long, and so on.
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 1.0
#: The last notices, for those who asked before one came and begin to wait after it.
REMEMBERED = 1_000

#: Which of some runners, the first so many of them, may take what waits in projects; of None: in all.
Able = Callable[[Sequence[int], frozenset[int | None], int], Awaitable[list[int]]]


class Place:
    """Of a request that waits."""

    def __init__(self, runner_id: int) -> None:
        self.runner_id = runner_id
        #: True: it is called. False: it is sent home.
        self.turn = asyncio.get_running_loop().create_future()
        #: While it is called: whether it has got a job.
        self.outcome: asyncio.Future[bool] | None = None

    def tell(self, turn: bool) -> None:
        if not self.turn.done():
            self.turn.set_result(turn)

    def end_turn(self, got_a_job: bool) -> None:
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_result(got_a_job)


class PendingJobs:
    """Knows which runners wait, and calls them when jobs have become pending."""

    def __init__(self) -> None:
        #: Who waits and is not called just now, the longest wait first.
        self._places: dict[Place, None] = {}
        self._news = asyncio.Event()
        self._due: set[int | None] = set()
        self._last: deque[int | None] = deque(maxlen=REMEMBERED)
        self._closed = self._all_leave = False
        #: Counts notices; as `last_update` it tells a runner whether anything has happened since its last poll.
        self.generation = 0

    def announce(self, project_id: int | None = None) -> None:
        """Jobs of the project wait; None: of any."""
        self.generation += 1
        self._last.append(project_id)
        self._due.add(project_id)
        self._news.set()

    @contextmanager
    def waiting(self, runner_id: int, generation: int) -> Iterator[Place]:
        """A place for the length of the block. The runner has asked in vain when there were `generation` notices."""
        place = Place(runner_id)
        missed = self.generation - generation
        if missed:
            self._due |= set(list(self._last)[-missed:]) if missed <= len(self._last) else {None}
            self._news.set()
        self._places[place] = None
        try:
            yield place
        finally:
            self._places.pop(place, None)
            place.end_turn(False)

    async def called(self, place: Place, seconds: float) -> bool:
        """Waits until it is the place's turn: False where `seconds` went by without, or everybody leaves."""
        if not self._sends_home:
            await asyncio.wait({place.turn}, timeout=max(0, seconds))
        return place.turn.done() and bool(place.turn.result()) and not self._sends_home

    def got_nothing(self, place: Place) -> None:
        """The turn is over, and the place is the last one again."""
        place.turn = asyncio.get_running_loop().create_future()
        place.end_turn(False)
        self._places[place] = None

    def close(self) -> None:
        """Sends everybody home, now and from now on."""
        self._closed = True
        self._send_home()

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """Everybody is sent home, for the length of the block."""
        self._all_leave = True
        self._send_home()
        try:
            yield
        finally:
            self._all_leave = False

    @property
    def _sends_home(self) -> bool:
        return self._closed or self._all_leave

    def _send_home(self) -> None:
        for place in self._places:
            place.tell(False)

    @asynccontextmanager
    async def listening(
        self, database_url: str, background: BackgroundTasks, able: Able
    ) -> AsyncIterator[None]:
        """Hears the notices of all processes, and calls those who wait here, for the length of the block."""
        background.start(LISTENER, lambda: self._listen(database_url), longest_pause=RECONNECT_AFTER)
        background.start(CALLER, lambda: self._call_again_and_again(able), longest_pause=RECONNECT_AFTER)
        try:
            yield
        finally:
            await background.finish(LISTENER, 0)
            await background.finish(CALLER, 0)

    async def _listen(self, database_url: str) -> None:
        """Raises `Unavailable` when the connection is lost."""
        async with listening_connection(database_url, CHANNEL) as connection:
            self.announce()  # whatever happened while nobody listened
            while True:
                heard = (await connection.notification()).payload
                self.announce(int(heard) if heard.isdecimal() else None)

    async def _call_again_and_again(self, able: Able) -> None:
        """Raises `Unavailable` where the database cannot be asked."""
        due: set[int | None] = {None}  # what was due when an earlier one ended
        size, pause = 1, 0.0
        while True:
            if not due:
                await self._news.wait()
            self._news.clear()
            due |= self._due
            self._due = set()
            waiting = list(dict.fromkeys(place.runner_id for place in self._places))
            runners = await able(waiting, frozenset(due), size) if waiting else []
            if not runners:
                due, size, pause = set(), 1, 0.0
            elif await self._call(runners, size):
                size, pause = min(size + 1, CALLED_AT_A_TIME), 0.0
            else:
                size, pause = 1, min(max(FIRST_PAUSE, 2 * pause), LONGEST_PAUSE)
                await self._rest(pause)

    async def _rest(self, seconds: float) -> None:
        """Ended by news."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _call(self, runners: Sequence[int], most: int) -> bool:
        """Whether all that were called have got jobs; nobody is called where those who may have gone meanwhile."""
        places = [place for place in self._places if place.runner_id in runners and not place.turn.done()][
            :most
        ]
        outcomes = []
        for place in places:
            del self._places[place]
            place.outcome = asyncio.get_running_loop().create_future()
            place.tell(True)
            outcomes.append(place.outcome)
        return all([await outcome for outcome in outcomes])
