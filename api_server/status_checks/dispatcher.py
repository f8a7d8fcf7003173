"""Sending of queued deliveries to many receivers at once, so that none delays the others; and the periodic tasks.

A worker takes a delivery by moving its due time beyond the maximum duration of an attempt, and releases it by recording
the outcome. If a worker dies in between, its deliveries become due again by themselves.
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
from api_server.status_checks.delivery_queries import DeliveryResult, DueDelivery
from common.concurrency import Gate, end
from common.lifecycle import BackgroundTasks, Shutdown

log = structlog.get_logger(__name__)

#: Maximum number of concurrent attempts in this process.
CONNECTIONS = 256
#: Maximum number of concurrent attempts to one receiver. A failing receiver gets one connection until it succeeds.
CONNECTIONS_OF_ONE = 16
#: Seconds between two looks at the queue if no attempt ends in the meantime.
PAUSE = 0.5
#: Maximum number of seconds between two attempts to use the queue while the database is unavailable.
LONGEST_PAUSE = 2.0
#: Maximum number of seconds for attempts in progress to finish when the process ends.
GRACE = 10.0
#: Maximum number of seconds for the dispatcher's present step, which records outcomes, when the process ends.
GIVING_BACK_SECONDS = 1.0
DELIVERIES = "status check deliveries"
#: Time after which a taken delivery becomes due again for other workers.
LEASE = datetime.timedelta(seconds=2 * (TIMEOUT.total or 0))
#: Time after which a check with a failing receiver is paused.
UNREACHABLE_FOR = datetime.timedelta(days=3)


@attrs.define
class Dispatcher:
    """The deliveries that this process is sending."""

    _database: Database
    _session: aiohttp.ClientSession
    _vault: Vault
    _random: Callable[[], float]
    _in_flight: dict["asyncio.Task[None]", DueDelivery] = attrs.field(init=False, factory=dict)
    _results: list[tuple[DueDelivery, Outcome]] = attrs.field(init=False, factory=list)
    _wake: asyncio.Event = attrs.field(init=False, factory=asyncio.Event)
    _stopping: bool = attrs.field(init=False, default=False)
    _gate: Gate = attrs.field(init=False, factory=Gate)

    @contextlib.asynccontextmanager
    async def working(self, background: BackgroundTasks, shutdown: Shutdown) -> AsyncIterator[None]:
        """Send deliveries for the duration of the block. Once the shutdown begins, no more are started; those in
        progress finish in the remaining time or become due again."""

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
                await self._finish(shutdown.seconds_left)
            except Unavailable:
                log.warning("deliveries could not be released, they become due again by themselves")

    async def deliver_due(self) -> None:
        """Send all due deliveries, and return when every attempt has ended and is recorded."""
        self._wake.clear()
        while await self._run_once() or self._in_flight:
            if self._in_flight:
                await self._wake.wait()
            self._wake.clear()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Prevent the background work from starting or recording attempts for the duration of the block. Blocks must
        not overlap."""
        with self._gate.closed():
            await self._gate.empty()
            yield

    async def ended(self, seconds: float) -> bool:
        """Wait up to `seconds` for the attempts in progress, and record outcomes. Return False if some continue."""
        if self._in_flight:
            await asyncio.wait(dict(self._in_flight), timeout=seconds)
        await self._record_landed()
        return not self._in_flight

    async def drop(self) -> None:
        """Cancel the attempts in progress, and discard the outcomes that are not recorded yet."""
        await end(*self._in_flight)
        self._in_flight.clear()
        self._results.clear()

    async def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            async with self._gate.passing():
                await self._run_once()
            if not self._stopping:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), PAUSE)

    async def _run_once(self) -> bool:
        """Record outcomes, then start due deliveries. Return whether there was anything to do, or still is.

        The order matters: a delivery whose outcome could not be recorded before may be due again, and must be recorded
        before it would be sent twice.
        """
        recorded = await self._record_landed()
        started = await self._start_due()
        return bool(started or recorded or self._results)

    async def _start_due(self) -> int:
        free = CONNECTIONS - len(self._in_flight)
        if not free:
            return 0
        async with self._database.transaction() as transaction:
            due = await delivery_queries.take_due(
                transaction,
                lease=LEASE,
                busy=collections.Counter(row.check_id for row in self._in_flight.values()),
                per_check=CONNECTIONS_OF_ONE,
                limit=free,
            )
        for row in due:
            self._in_flight[asyncio.create_task(self._attempt(row))] = row
        return len(due)

    async def _attempt(self, row: DueDelivery) -> None:
        try:
            outcome = await send(self._session, self._message(row), self._database.now)
            if not outcome.succeeded:
                _log_failure(row, outcome.problem)
            self._results.append((row, outcome))
        except Exception as problem:
            _log_failure(row, f"{type(problem).__name__}: the request could not be made", exc_info=problem)
            unsent = Outcome(
                request_headers={},
                began_at=self._database.now,
                duration=0,
                error="The request could not be made; the server's log says why",
            )
            self._results.append((row, unsent))
        finally:
            task = asyncio.current_task()
            if task is not None:
                self._in_flight.pop(task, None)
            self._wake.set()

    def _message(self, row: DueDelivery) -> Message:
        return Message(
            url=row.external_url,
            body=row.body,
            webhook_id=row.webhook_id,
            attempt=row.attempts + 1,
            secret=None if row.shared_secret is None else self._vault.decrypt(row.shared_secret),
        )

    async def _record_landed(self) -> int:
        """Record outcomes and return their number. Those that cannot be recorded are kept for the next time."""
        recorded = 0
        results, self._results = self._results, []
        try:
            while results:
                # A delivery can occur twice if a user redelivered it during an attempt; record the outcomes in order.
                first = {pair[0].id: pair for pair in reversed(results)}
                async with self._database.transaction() as transaction:
                    await self._record(transaction, [self._result(*pair) for pair in first.values()])
                results = [pair for pair in results if pair is not first[pair[0].id]]
                recorded += len(first)
        finally:
            self._results = results + self._results
        return recorded

    def _result(self, row: DueDelivery, outcome: Outcome) -> DeliveryResult:
        wait = None
        if not outcome.succeeded and not outcome.gone:
            requested_wait = retry_after(outcome.retry_after, self._database.now)
            wait = wait_after(row.tries + 1, self._random(), requested_wait)
        return DeliveryResult(row, outcome, self._database.now + wait if wait else None)

    async def _record(self, transaction: Transaction, results: list[DeliveryResult]) -> None:
        outcomes = {result.delivery.id: result.outcome for result in results}
        for check in await delivery_queries.record(transaction, results):
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
        in_flight = dict(self._in_flight)
        if in_flight:
            await asyncio.wait(in_flight, timeout=min(GRACE, seconds))
        unfinished = {task: row for task, row in in_flight.items() if not task.done()}
        await end(*unfinished)
        await self._record_landed()
        if unfinished:
            async with self._database.transaction() as transaction:
                ids = [row.id for row in unfinished.values()]
                await delivery_queries.release(transaction, ids)


def _log_failure(row: DueDelivery, reason: str | None, exc_info: Exception | None = None) -> None:
    """Log a failed attempt, with only the host of the URL, because the rest may contain secrets."""
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
#: The source of numbers from [0, 1) for the jitter of retries, which tests replace.
RANDOM = Key[Callable[[], float]]("random")

#: Time for which deliveries and their attempts are kept.
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
    """Send queued deliveries while the application runs, in processes that do background work."""
    dispatcher = Dispatcher(services.database, services[OUTGOING_SESSION], services.vault, services[RANDOM])
    services[DISPATCHER] = dispatcher
    if not services.settings.work:
        yield
        return
    async with dispatcher.working(services.background, services.shutdown):
        yield
