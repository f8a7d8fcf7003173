"""Sends what is queued: many receivers at a time, none of which can keep the others waiting; and the periodic tasks.

A delivery is taken by moving its due time past the longest time that an attempt can take, and let go by recording the
outcome. A worker that dies in between loses nothing: its deliveries become due again by themselves.
"""

import asyncio
import collections
import contextlib
import datetime
import random
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

import aiohttp
import attrs
import structlog

from api_server.code.protected_refs import END_OF_PROTECTION_LISTENERS
from api_server.merge_requests.changes import MERGE_REQUEST_LISTENERS
from api_server.outbound.client import OUTGOING_SESSION
from api_server.services import Key, Services
from api_server.state import audit_trail
from api_server.state.audit_trail import SYSTEM, Entity
from api_server.state.database import Database, Transaction
from api_server.state.errors import Unavailable
from api_server.state.secrets import Vault
from api_server.status_checks import checks, delivery_queries, queries
from api_server.status_checks.attempts import TIMEOUT, Message, Outcome, retry_after, send, wait_after
from api_server.status_checks.delivery_queries import DeliveryResult, Due
from common.concurrency import Gate, end
from common.lifecycle import BackgroundTasks, Shutdown

log = structlog.get_logger(__name__)

#: Attempts under way at a time, in this process.
CONNECTIONS = 256
#: Of those, to one receiver while it answers well; one that fails gets a single connection until it succeeds.
CONNECTIONS_OF_ONE = 16
#: Seconds between two looks at the queue when nothing else gives a reason to look.
PAUSE = 0.5
#: Seconds between two tries to read and write the queue while the database is away, at most.
LONGEST_PAUSE = 2.0
#: Seconds that attempts under way get to finish when the process ends, at most.
GRACE = 10.0
#: How long it may take to write down what has begun.
GIVING_BACK_SECONDS = 1.0
DELIVERIES = "status check deliveries"
#: How long a taken delivery stays away from other workers.
TAKEN_FOR = datetime.timedelta(seconds=2 * (TIMEOUT.total or 0))
#: A check whose receiver has failed for this long is paused.
UNREACHABLE_FOR = datetime.timedelta(days=3)


@attrs.define
class Dispatcher:
    """The deliveries that this process has under way."""

    _database: Database
    _session: aiohttp.ClientSession
    _vault: Vault
    _random: Callable[[], float]
    _flying: dict["asyncio.Task[None]", Due] = attrs.field(init=False, factory=dict)
    _landed: list[tuple[Due, Outcome]] = attrs.field(init=False, factory=list)
    _wake: asyncio.Event = attrs.field(init=False, factory=asyncio.Event)
    _stopping: bool = attrs.field(init=False, default=False)
    _gate: Gate = attrs.field(init=False, factory=Gate)

    @contextlib.asynccontextmanager
    async def working(self, background: BackgroundTasks, shutdown: Shutdown) -> AsyncIterator[None]:
        """Deliveries are sent for the length of the block. From the beginning of the shutdown on no more are begun;
        those under way are finished in what is left of it, or given back."""

        def stop() -> None:
            self._stopping = True
            background.let_end(DELIVERIES)
            self._wake.set()

        self._stopping = False
        shutdown.at_begin(stop)
        background.start(DELIVERIES, self._run, longest_pause=LONGEST_PAUSE)
        try:
            yield
        finally:
            stop()
            await background.finish(DELIVERIES, GIVING_BACK_SECONDS)
            try:
                await self._finish(shutdown.left)
            except Unavailable:
                log.warning("deliveries could not be given back, they are due again by themselves")

    async def deliver_due(self) -> None:
        """Send everything that is due by now, and return when all of it has been answered or has failed."""
        self._wake.clear()
        while await self._turn() or self._flying:
            if self._flying:
                await self._wake.wait()
            self._wake.clear()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Nothing is begun by itself, or written down, for the length of the block; one block at a time."""
        with self._gate.closed():
            await self._gate.empty()
            yield

    async def ended(self, seconds: float) -> bool:
        """Wait until nothing is under way, and write down what has come back: False where it takes longer."""
        if self._flying:
            await asyncio.wait(dict(self._flying), timeout=seconds)
        await self._record_landed()
        return not self._flying

    async def drop(self) -> None:
        """End what is under way, and forgets what came of it."""
        await end(*self._flying)
        self._flying.clear()
        self._landed.clear()

    async def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            async with self._gate.passing():
                await self._turn()
            if not self._stopping:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), PAUSE)

    async def _turn(self) -> bool:
        """Record what has come back, then start what is due; whether there was or is any of it.

        In this order: what could not be recorded before must not be due again by now and be sent twice.
        """
        recorded = await self._record_landed()
        started = await self._start_due()
        return bool(started or recorded or self._landed)

    async def _start_due(self) -> int:
        room = CONNECTIONS - len(self._flying)
        if not room:
            return 0
        async with self._database.transaction() as transaction:
            taken = await delivery_queries.take_due(
                transaction,
                taken_for=TAKEN_FOR,
                busy=collections.Counter(row.check_id for row in self._flying.values()),
                room=CONNECTIONS_OF_ONE,
                total_room=room,
            )
        for row in taken:
            self._flying[asyncio.create_task(self._attempt(row))] = row
        return len(taken)

    async def _attempt(self, row: Due) -> None:
        try:
            outcome = await send(self._session, self._message(row), self._database.now)
            if not outcome.succeeded:
                _log_failure(row, outcome.problem)
            self._landed.append((row, outcome))
        except Exception as problem:
            _log_failure(row, f"{type(problem).__name__}: the request could not be made", exc_info=problem)
            unsent = Outcome(
                request_headers={},
                began_at=self._database.now,
                duration=0,
                error="The request could not be made; the server's log says why",
            )
            self._landed.append((row, unsent))
        finally:
            task = asyncio.current_task()
            if task is not None:
                self._flying.pop(task, None)
            self._wake.set()

    def _message(self, row: Due) -> Message:
        return Message(
            url=row.external_url,
            body=row.body,
            webhook_id=row.webhook_id,
            attempt=row.attempts + 1,
            secret=None if row.shared_secret is None else self._vault.decrypt(row.shared_secret),
        )

    async def _record_landed(self) -> int:
        """How many were recorded. What cannot be stays, for the next turn."""
        recorded = 0
        landed, self._landed = self._landed, []
        try:
            while landed:
                # A delivery can have landed twice, when somebody redelivered it while it was under way.
                first = {pair[0].id: pair for pair in reversed(landed)}
                async with self._database.transaction() as transaction:
                    await self._record(transaction, [self._landing(*pair) for pair in first.values()])
                landed = [pair for pair in landed if pair is not first[pair[0].id]]
                recorded += len(first)
        finally:
            self._landed = landed + self._landed
        return recorded

    def _landing(self, row: Due, outcome: Outcome) -> DeliveryResult:
        wait = None
        if not outcome.succeeded and not outcome.gone:
            asked_wait = retry_after(outcome.retry_after, self._database.now)
            wait = wait_after(row.tries + 1, self._random(), asked_wait)
        return DeliveryResult(row.id, outcome, self._database.now + wait if wait else None)

    async def _record(self, transaction: Transaction, landed: list[DeliveryResult]) -> None:
        outcomes = {each.delivery_id: each.outcome for each in landed}
        for check in await delivery_queries.record(transaction, landed):
            outcome = outcomes[check.id]
            if outcome.succeeded and check.paused_at is not None:
                await checks.resume(transaction, check.check_id, None)
            elif outcome.gone:
                await self._pause(transaction, check.check_id, "The receiver answered 410 Gone")
            elif (
                not outcome.succeeded
                and check.failing_since
                and transaction.now - check.failing_since >= UNREACHABLE_FOR
            ):
                reason = f"The receiver has failed since {check.failing_since:%Y-%m-%d %H:%M:%S} UTC"
                await self._pause(transaction, check.check_id, reason)

    async def _pause(self, transaction: Transaction, check_id: int, reason: str) -> None:
        await delivery_queries.give_up(transaction, check_id)
        paused = await queries.pause(transaction, check_id, reason)
        if paused is not None:
            log.warning("deliveries paused", check=check_id, project=paused.project_id, reason=reason)
            target = Entity("Project", paused.project_id, paused.full_path).target(paused.id, paused.name)
            await audit_trail.record(
                transaction, "external_status_check_paused", SYSTEM, target, reason=reason
            )

    async def _finish(self, seconds: float) -> None:
        flying = dict(self._flying)
        if flying:
            await asyncio.wait(flying, timeout=min(GRACE, seconds))
        unfinished = {task: row for task, row in flying.items() if not task.done()}
        await end(*unfinished)
        await self._record_landed()
        if unfinished:
            async with self._database.transaction() as transaction:
                ids = [row.id for row in unfinished.values()]
                await delivery_queries.release(transaction, ids)


def _log_failure(row: Due, reason: str | None, exc_info: Exception | None = None) -> None:
    """The one line about an attempt that has failed. The rest of the URL may hold secrets."""
    log.warning(
        "delivery failed",
        delivery=row.id,
        check=row.check_id,
        host=urlsplit(row.external_url).hostname,
        attempt=row.attempts + 1,
        reason=reason,
        exc_info=exc_info,
    )


DISPATCHER = Key[Dispatcher]("dispatcher")
#: Numbers from [0, 1) for the jitter of retries; tests choose them.
RANDOM = Key[Callable[[], float]]("random")

#: Deliveries and their attempts are kept this long.
KEPT_FOR = datetime.timedelta(days=90)


def setup(services: Services) -> None:
    services[RANDOM] = random.random
    services[MERGE_REQUEST_LISTENERS].append(delivery_queries.queue_event)
    services[END_OF_PROTECTION_LISTENERS].append(checks.follow_end_of_protection)

    async def forget_deliveries() -> None:
        async with services.database.transaction() as transaction:
            await delivery_queries.forget(transaction, transaction.now - KEPT_FOR)

    async def time_out_status_checks() -> None:
        if seconds := services.settings.status_check_timeout:
            async with services.database.transaction() as transaction:
                await checks.time_out_responses(transaction, seconds)

    services.queue.add_periodic("forget_deliveries", "23 3 * * *", forget_deliveries)
    services.queue.add_periodic(
        "time_out_status_checks",
        "* * * * *",
        time_out_status_checks,
        begun_here=services.settings.status_check_timeout > 0,
    )


async def deliveries(services: Services) -> AsyncIterator[None]:
    """Send what is queued while the application runs, in processes that do background work."""
    dispatcher = Dispatcher(services.database, services[OUTGOING_SESSION], services.vault, services[RANDOM])
    services[DISPATCHER] = dispatcher
    if not services.settings.work:
        yield
        return
    async with dispatcher.working(services.background, services.shutdown):
        yield
