"""Waking runners that wait for a job: one connection listens for the whole process, and runners that may take
a pending job are woken one or a few at a time.

A notification names a project. One statement finds the waiting runners that may take a job of it; the one
that has waited longest is woken and asks for a job itself, and as long as jobs are taken, the next. The
database decides who gets a job. So a notification that is lost (because of a broken connection) merely makes
a runner wait until the end of its poll.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from api_server.state.driver import listening_connection
from common.lifecycle import BackgroundTasks

CHANNEL = "jobs_pending"
LISTENER = "listening for jobs"
CALLER = "calling runners"
#: Maximum seconds until a lost connection is opened again.
RECONNECT_AFTER = 1.0
#: Maximum number of runners woken at a time, after the previous ones have got jobs.
CALLED_AT_A_TIME = 3
#: Seconds until others are woken after a runner got nothing: another process may be about to take the job.
#: The pause doubles each time.
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 1.0
#: Number of notifications remembered for a runner that asked before a notification and begins to wait after
#: it.
REMEMBERED = 1_000

#: Returns the first runners, up to the number, that may take a pending job of these projects (None: of any
#: project).
Able = Callable[[Sequence[int], frozenset[int | None], int], Awaitable[list[int]]]


class WaitingRunner:
    """A request of a runner that waits for a job."""

    def __init__(self, runner_id: int) -> None:
        self.runner_id = runner_id
        #: True: it is woken. False: it is sent away.
        self.turn = asyncio.get_running_loop().create_future()
        #: While it is awake: whether it has got a job.
        self.outcome: asyncio.Future[bool] | None = None

    def wake(self, turn: bool) -> None:
        if not self.turn.done():
            self.turn.set_result(turn)

    def end_turn(self, got_a_job: bool) -> None:
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_result(got_a_job)


class PendingJobs:
    """Knows which runners wait, and wakes them when jobs have become pending."""

    def __init__(self) -> None:
        #: The waiting runners that are not awake, the longest wait first.
        self._waiting: dict[WaitingRunner, None] = {}
        self._news = asyncio.Event()
        self._due: set[int | None] = set()
        self._last: deque[int | None] = deque(maxlen=REMEMBERED)
        self._closed = self._all_leave = False
        #: Counts notifications; as `last_update` it tells a runner whether there has been one since its last
        #: poll.
        self.generation = 0

    def announce(self, project_id: int | None = None) -> None:
        """Record that jobs of the project (None: of any project) are pending."""
        self.generation += 1
        self._last.append(project_id)
        self._due.add(project_id)
        self._news.set()

    @contextmanager
    def waiting(self, runner_id: int, generation: int) -> Iterator[WaitingRunner]:
        """Let a runner wait for the duration of the block. `generation` is the number of notifications when
        it asked in vain."""
        waiter = WaitingRunner(runner_id)
        missed = self.generation - generation
        if missed:
            self._due |= set(list(self._last)[-missed:]) if missed <= len(self._last) else {None}
            self._news.set()
        self._waiting[waiter] = None
        try:
            yield waiter
        finally:
            self._waiting.pop(waiter, None)
            waiter.end_turn(False)

    async def called(self, waiter: WaitingRunner, seconds: float) -> bool:
        """Wait until the runner is woken. Return False after `seconds` without that, or if all runners are
        sent away."""
        if not self._sends_home:
            await asyncio.wait({waiter.turn}, timeout=max(0, seconds))
        return waiter.turn.done() and bool(waiter.turn.result()) and not self._sends_home

    def got_nothing(self, waiter: WaitingRunner) -> None:
        """End the runner's turn; it waits again, behind all others."""
        waiter.turn = asyncio.get_running_loop().create_future()
        waiter.end_turn(False)
        self._waiting[waiter] = None

    def close(self) -> None:
        """Send all runners away, now and from now on."""
        self._closed = True
        self._send_home()

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """Send all runners away for the duration of the block."""
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
        for waiter in self._waiting:
            waiter.wake(False)

    @asynccontextmanager
    async def listening(
        self, database_url: str, background: BackgroundTasks, able: Able
    ) -> AsyncIterator[None]:
        """Listen to the notifications of all processes, and wake the runners that wait here, for the duration
        of the block."""
        background.start(LISTENER, lambda: self._listen(database_url), longest_pause=RECONNECT_AFTER)
        background.start(CALLER, lambda: self._call_again_and_again(able), longest_pause=RECONNECT_AFTER)
        try:
            yield
        finally:
            await background.finish(LISTENER, 0)
            await background.finish(CALLER, 0)

    async def _listen(self, database_url: str) -> None:
        """Listen for notifications. Raise `Unavailable` when the connection is lost."""
        async with listening_connection(database_url, CHANNEL) as connection:
            self.announce()  # jobs may have become pending while nobody listened
            while True:
                payload = (await connection.notification()).payload
                self.announce(int(payload) if payload.isdecimal() else None)

    async def _call_again_and_again(self, able: Able) -> None:
        """Wake runners whenever there is news. Raise `Unavailable` if the database cannot be asked."""
        due: set[int | None] = {None}  # jobs may be left from an earlier run
        size, pause = 1, 0.0
        while True:
            if not due:
                await self._news.wait()
            self._news.clear()
            due |= self._due
            self._due = set()
            waiting = list(dict.fromkeys(waiter.runner_id for waiter in self._waiting))
            runners = await able(waiting, frozenset(due), size) if waiting else []
            if not runners:
                due, size, pause = set(), 1, 0.0
            elif await self._call(runners, size):
                size, pause = min(size + 1, CALLED_AT_A_TIME), 0.0
            else:
                size, pause = 1, min(max(FIRST_PAUSE, 2 * pause), LONGEST_PAUSE)
                await self._rest(pause)

    async def _rest(self, seconds: float) -> None:
        """Pause until there is news, at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _call(self, runners: Sequence[int], limit: int) -> bool:
        """Wake the runners and return whether all of them got jobs. Leave out runners that may have gone
        meanwhile."""
        called = [
            waiter for waiter in self._waiting if waiter.runner_id in runners and not waiter.turn.done()
        ][:limit]
        outcomes = []
        for waiter in called:
            del self._waiting[waiter]
            waiter.outcome = asyncio.get_running_loop().create_future()
            waiter.wake(True)
            outcomes.append(waiter.outcome)
        return all([await outcome for outcome in outcomes])
