"""What fails just now, of the parts that keep no state of their own: mail, the store, edges, the disk, background work,
tasks. Written when something fails and taken away when it succeeds, so that there are never more rows than parts."""

import contextlib
import datetime

import attrs
import structlog

from api_server.state.database import Database, Executor, Transaction
from api_server.state.errors import LockNotAvailable, Unavailable
from api_server.state.statements import Query
from common.logs import redact

log = structlog.get_logger(__name__)

#: The part that says by ids why tasks have failed.
TASK_FAILURES = "task"
#: Characters of a reason that are kept.
MOST_OF_A_REASON = 500


def reason_of(problem: BaseException) -> str:
    """One line of at most 500 characters that says what went wrong, without secrets."""
    text = str(problem).strip().partition("\n")[0]
    return shortened(f"{type(problem).__name__}: {text}" if text else type(problem).__name__)


def shortened(reason: str) -> str:
    """A reason as it is kept: one line, bounded, without secrets."""
    line = " ".join(redact(reason.replace("\0", "")).split())
    return line if len(line) <= MOST_OF_A_REASON else f"{line[: MOST_OF_A_REASON - 1]}\N{HORIZONTAL ELLIPSIS}"


@attrs.frozen
class Noted:
    """What fails: `times` since `first_at`, at last for `reason` at `last_at`. `source` is the process that it fails
    for, empty where it fails for all."""

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
        SET last_at = excluded.last_at, times = known.times + 1, reason = excluded.reason
"""


async def note(transaction: Transaction, part: str, subject: str, reason: str, source: str = "") -> None:
    """Something has failed."""
    await transaction.run(NOTE, part=part, subject=subject, source=source, reason=shortened(reason))


SETTLE = """
    DELETE FROM operations_failures WHERE part = %(part)s AND subject = %(subject)s AND source = %(source)s
"""


async def settle(transaction: Transaction, part: str, subject: str, source: str = "") -> None:
    """It works, or is gone; nothing is written where it was not known to fail."""
    await transaction.run(SETTLE, part=part, subject=subject, source=source)


NOTED = Query(
    """
    SELECT part, subject, source, first_at, last_at, times, reason FROM operations_failures
    WHERE part = %(part)s AND (source = '' OR last_at >= %(heard_since)s::timestamptz)
    ORDER BY last_at DESC, subject, source LIMIT %(most)s::integer
    """,
    Noted,
)


async def noted(
    database: Executor, part: str, *, heard_since: datetime.datetime, most: int = 100
) -> list[Noted]:
    """What fails of a part, the latest first; what a process has said that has not been heard of since a moment does
    not count."""
    return await database.rows(NOTED, part=part, heard_since=heard_since, most=most)


FORGET = "DELETE FROM operations_failures WHERE source <> '' AND last_at < %(before)s::timestamptz"


async def forget(transaction: Transaction, before: datetime.datetime) -> None:
    """Removes what processes have said that are gone."""
    await transaction.run(FORGET, before=before)


@attrs.frozen
class Failures:
    """`note` and `settle` for what has no transaction, and must not fail in its turn while there is no database."""

    _database: Database

    async def note(self, part: str, subject: str, reason: str, source: str = "") -> None:
        with contextlib.suppress(Unavailable, LockNotAvailable):
            async with self._database.transaction() as transaction:
                await note(transaction, part, subject, reason, source)

    async def settle(self, part: str, subject: str, source: str = "") -> None:
        with contextlib.suppress(Unavailable, LockNotAvailable):
            async with self._database.transaction() as transaction:
                await settle(transaction, part, subject, source)
