"""Current failures of the parts without state of their own: mail, the object store, edges, the disk,
background work and tasks.

A row is written when something fails and removed when it succeeds again, so there are never more rows than
parts.
"""

import contextlib
import datetime

import attrs
import structlog

from api_server.state.database import Database, Executor, Transaction
from api_server.state.errors import LockNotAvailable, Unavailable
from api_server.state.statements import Query
from common.logs import redact

log = structlog.get_logger(__name__)

#: The part under which failed tasks are recorded, by id.
TASK_FAILURES = "task"
#: Maximum length of a stored reason in characters.
MAX_REASON = 500
#: How long a process's report about itself is valid; each process reports twice in this time.
HEARD_OF = datetime.timedelta(seconds=60)


def reason_of(problem: BaseException) -> str:
    """Return one line of at most 500 characters that gives the reason of an error, without secrets."""
    text = str(problem).strip().partition("\n")[0]
    return shortened(f"{type(problem).__name__}: {text}" if text else type(problem).__name__)


def shortened(reason: str) -> str:
    """Return a reason as it is stored: one line, shortened, without secrets."""
    line = " ".join(redact(reason.replace("\0", "")).split())
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 1]}\N{HORIZONTAL ELLIPSIS}"


@attrs.frozen
class RecordedFailure:
    """A failure that has occurred `times` times since `first_at`, most recently at `last_at` for `reason`.
    `source` is the process in which it fails, or empty if it fails for all processes."""

    part: str
    subject: str
    source: str
    first_at: datetime.datetime
    last_at: datetime.datetime
    times: int
    reason: str


NOTE = """
    INSERT INTO operations_failures AS known (part, subject, source, first_at, last_at, times, reason)
    VALUES (%(part)s, %(subject)s, %(source)s, %(now)s, %(now)s, 1, %(reason)s)
    ON CONFLICT (part, subject, source) DO UPDATE
        SET first_at = CASE
                WHEN known.source <> '' AND known.last_at < excluded.last_at - %(heard_of)s::interval
                    THEN excluded.first_at -- the process had ended meanwhile, and the failure too
                ELSE known.first_at END,
            last_at = excluded.last_at, times = known.times + 1, reason = excluded.reason
"""


async def note(transaction: Transaction, part: str, subject: str, reason: str, source: str = "") -> None:
    """Record a failure."""
    await transaction.run(
        NOTE, part=part, subject=subject, source=source, reason=shortened(reason), heard_of=HEARD_OF
    )


SETTLE = """
    DELETE FROM operations_failures
    WHERE part = %(part)s AND subject = coalesce(%(subject)s, subject) AND source = %(source)s
"""


async def settle(transaction: Transaction, part: str, subject: str | None, source: str = "") -> None:
    """Remove the record of a failure that is over, or those of all subjects. Nothing is written if there is no such
    record."""
    await transaction.run(SETTLE, part=part, subject=subject, source=source)


SETTLE_TASKS = "DELETE FROM procrastinate_jobs WHERE status = 'failed' AND task_name = %(task)s"


RECORDED = Query(
    """
    SELECT part, subject, source, first_at, last_at, times, reason FROM operations_failures
    WHERE part = %(part)s AND (source = '' OR last_at >= %(heard_since)s::timestamptz)
    ORDER BY last_at DESC, subject, source LIMIT %(limit)s::integer
    """,
    RecordedFailure,
)


async def recorded(
    database: Executor, part: str, *, heard_since: datetime.datetime, limit: int = 100
) -> list[RecordedFailure]:
    """Return the failures of a part, the latest first. Leave out those of processes that have not been heard
    of since `heard_since`."""
    return await database.rows(RECORDED, part=part, heard_since=heard_since, limit=limit)


FORGET = "DELETE FROM operations_failures WHERE source <> '' AND last_at < %(before)s::timestamptz"


async def forget(transaction: Transaction, before: datetime.datetime) -> None:
    """Remove the failures reported by processes that no longer exist."""
    await transaction.run(FORGET, before=before)


@attrs.frozen
class Failures:
    """`note` and `settle` for callers without a transaction; they raise no error if the database is down."""

    _database: Database

    async def note(self, part: str, subject: str, reason: str, source: str = "") -> None:
        with contextlib.suppress(Unavailable, LockNotAvailable):
            async with self._database.transaction() as transaction:
                await note(transaction, part, subject, reason, source)

    async def settle(self, part: str, subject: str | None, source: str = "") -> None:
        with contextlib.suppress(Unavailable, LockNotAvailable):
            async with self._database.transaction() as transaction:
                await settle(transaction, part, subject, source)

    async def settle_tasks(self, task: str) -> None:
        """Remove the failed tasks of a name after a later one has done their work. Their reasons are no
        longer shown, and go once a day."""
        with contextlib.suppress(Unavailable, LockNotAvailable):
            async with self._database.transaction() as transaction:
                await transaction.run(SETTLE_TASKS, task=task)
