# mypy: disable-error-code="empty-body"
"""Statements about logs."""

import attrs

from api_server.state.database import Database, Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.statements import Statement


@attrs.frozen
class Log:
    """The state of a log, wherever its bytes are stored."""

    #: Bytes received, and their CRC-32 before masking.
    size: int
    checksum: int
    #: The number of its last bytes that may begin a secret, and that readers do not get yet.
    held_size: int
    #: Whether the runner has already been asked once to send all of it again.
    doubted: bool
    #: Whether the job has ended, so that nothing more is added.
    closed: bool
    #: The object that holds the whole log, once it has been moved to the object store.
    object_key: str | None
    #: Whether somebody has read it a moment ago.
    watched: bool


_FIND_LOG = """
    SELECT job_logs.size, job_logs.checksum, job_logs.held_size, job_logs.doubted, job_logs.closed, job_logs.object_key,
        coalesce(job_logs.watched_at > %(now)s::timestamptz - interval '10 seconds', false) AS watched
    FROM job_logs WHERE job_logs.job_id = %(job_id)s
"""


@statement(_FIND_LOG, prepared=True)
async def find_log(database: Executor, job_id: int) -> Log | None:
    """Return the state of the job's log, or None if it has none."""


#: The size is compared and changed under the row's lock: of two appends at one offset, the second finds no
#: row.
APPEND = Statement("""
    WITH log AS (
        INSERT INTO job_logs AS known (job_id, size, checksum, held, held_size, updated_at)
        SELECT jobs.id, %(received)s::bigint, %(checksum)s::bigint, %(held)s::bytea, %(held_size)s::integer,
            %(now)s::timestamptz
        FROM jobs WHERE jobs.id = %(job_id)s AND jobs.status IN ('running', 'canceling')
            AND (%(size)s::bigint = 0 OR EXISTS (SELECT FROM job_logs WHERE job_logs.job_id = %(job_id)s))
        ON CONFLICT (job_id) DO UPDATE SET
            size = known.size + %(received)s::bigint,
            checksum = excluded.checksum,
            held = excluded.held,
            held_size = excluded.held_size,
            updated_at = excluded.updated_at
        WHERE known.size = %(size)s::bigint AND NOT known.closed
        RETURNING known.job_id
    ), chunk AS (
        INSERT INTO job_log_chunks (job_id, start, bytes)
        SELECT log.job_id, %(start)s::bigint, %(bytes)s::bytea FROM log WHERE octet_length(%(bytes)s::bytea) > 0
    ), contact AS (
        UPDATE jobs SET contacted_at = %(now)s FROM log
        WHERE jobs.id = log.job_id AND jobs.contacted_at < %(now)s::timestamptz - interval '15 seconds'
    )
    SELECT log.job_id FROM log
""")


async def append(
    transaction: Transaction,
    job_id: int,
    *,
    size: int,
    received: int,
    start: int,
    text: bytes,
    checksum: int,
    held: bytes | None,
    held_size: int,
) -> bool:
    """Add `text` at offset `start` to a log that had received `size` bytes, and has now received `received`
    more.

    The last `held_size` of them are held back. Return False if the log has another size or is closed, or if
    its job is not running.
    """
    appended = await transaction.run(
        APPEND,
        job_id=job_id,
        size=size,
        received=received,
        start=start,
        bytes=text,
        checksum=checksum,
        held=held,
        held_size=held_size,
    )
    return appended > 0


@attrs.frozen
class Chunk:
    """A piece of a log, and its offset."""

    start: int
    text: bytes


@statement(
    """
    SELECT job_log_chunks.start, job_log_chunks.bytes AS text FROM job_log_chunks
    WHERE job_log_chunks.job_id = %(job_id)s AND job_log_chunks.start >= coalesce((
        SELECT max(before.start) FROM job_log_chunks before
        WHERE before.job_id = %(job_id)s AND before.start <= %(start)s::bigint), 0)
        AND job_log_chunks.start < %(start)s::bigint + %(window)s::bigint
    ORDER BY job_log_chunks.start
    """,
    prepared=True,
)
async def read_chunks(database: Executor, job_id: int, start: int, window: int) -> list[Chunk]:
    """Return the piece that contains offset `start`, and those that begin less than `window` after it."""


@statement("""
    WITH chunks AS (DELETE FROM job_log_chunks WHERE job_id = %(job_id)s)
    UPDATE job_logs SET size = 0, checksum = 0, held = NULL, held_size = 0, doubted = true WHERE job_id = %(job_id)s
""")
async def empty(transaction: Transaction, job_id: int) -> None:
    """Delete the received bytes, so that the runner can send all of them again; it is asked to only once."""


@statement(f"{_FIND_LOG} FOR UPDATE SKIP LOCKED")
async def lock_for_check(transaction: Transaction, job_id: int) -> Log | None:
    """Lock the log and return its state. Return None if there is none, or while another process is appending
    to it."""


NOTE_WATCHED = """
    UPDATE job_logs SET watched_at = %(now)s WHERE job_id = %(job_id)s
"""


async def note_watched(database: Database, job_id: int) -> None:
    """Record that somebody is watching this log, so that its runner is asked to send more often."""
    async with database.transaction() as transaction:
        await transaction.run(NOTE_WATCHED, job_id=job_id)


@attrs.frozen
class ClosedLog:
    """A log to which nothing more is added, with the data of its job."""

    size: int
    #: Encrypted.
    held: bytes | None
    object_key: str | None
    project_id: int
    plan: str


@statement("""
    UPDATE job_logs SET closed = true FROM jobs
    WHERE job_logs.job_id = %(job_id)s AND jobs.id = job_logs.job_id
        AND jobs.status NOT IN ('running', 'canceling')
    RETURNING job_logs.size, job_logs.held, job_logs.object_key, jobs.project_id, jobs.plan
    """)
async def close(transaction: Transaction, job_id: int) -> ClosedLog | None:
    """Close the log. Return None if the job still runs or has no log."""


@statement("""
    WITH chunk AS (
        INSERT INTO job_log_chunks (job_id, start, bytes)
        SELECT job_id, size - held_size, %(held)s FROM job_logs WHERE job_id = %(job_id)s AND held_size > 0
    )
    UPDATE job_logs SET held = NULL, held_size = 0 WHERE job_id = %(job_id)s
""")
async def add_last_chunk(transaction: Transaction, job_id: int, held: bytes) -> None:
    """Append the bytes that were held back: they were not a secret."""


@statement("""
    WITH log AS (
        UPDATE job_logs SET object_key = %(key)s WHERE job_id = %(job_id)s AND object_key IS NULL
        RETURNING job_id
    ), chunks AS (
        DELETE FROM job_log_chunks USING log WHERE job_log_chunks.job_id = log.job_id
    ), coverage AS (
        UPDATE jobs SET coverage = %(coverage)s FROM log WHERE jobs.id = log.job_id AND %(coverage)s::float IS NOT NULL
    )
    SELECT log.job_id FROM log
""")
async def seal(transaction: Transaction, job_id: int, *, key: str, coverage: float | None) -> bool:
    """Record that the log is now the object `key`. Return False if the log has been erased, or is an object
    already."""


UNSEALED = """
    SELECT ARRAY(
        SELECT job_logs.job_id FROM job_logs JOIN jobs ON jobs.id = job_logs.job_id
        WHERE job_logs.object_key IS NULL AND jobs.status NOT IN ('running', 'canceling')
            AND jobs.finished_at < %(now)s::timestamptz - interval '5 minutes'
        ORDER BY job_logs.job_id LIMIT 100)
"""


async def unsealed(database: Executor) -> list[int]:
    """Return the ids of ended jobs whose logs are still rows."""
    return list(await database.value(UNSEALED))
