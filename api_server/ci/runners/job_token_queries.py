"""Statements about jobs that are in runners' hands."""

import datetime

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.statements import Statement


@attrs.frozen(kw_only=True)
class HeldJob:
    """A job that a runner speaks for, or did, with the end of its log."""

    id: int
    project_id: int
    status: str
    token_digest: bytes | None
    #: This is the first that is heard of its runner.
    unacknowledged: bool
    erased_at: datetime.datetime | None
    #: What its log must not show; encrypted.
    masked_values: bytes | None
    #: Of its log; 0 without one.
    size: int
    checksum: int
    #: The last bytes of the log, encrypted, where they may be the beginning of a secret.
    held: bytes | None
    #: Somebody has read the log within the last minute.
    watched: bool


FIND_HELD_JOB = Statement(
    """
    SELECT jobs.id, jobs.project_id, jobs.status, jobs.token_digest,
        jobs.unacknowledged_since IS NOT NULL AS unacknowledged, jobs.erased_at, jobs.masked_values,
        coalesce(job_logs.size, 0) AS size, coalesce(job_logs.checksum, 0) AS checksum, job_logs.held,
        coalesce(job_logs.watched_at > %(now)s::timestamptz - interval '1 minute', false) AS watched
    FROM jobs LEFT JOIN job_logs ON job_logs.job_id = jobs.id
    WHERE jobs.id = %(id)s
    """,
    HeldJob,
)


async def find_held_job(database: Executor, job_id: int) -> HeldJob | None:
    return await database.row(FIND_HELD_JOB, id=job_id)


@attrs.frozen
class Neighbour:
    """Another job of the same pipeline, by its token."""

    status: str
    unacknowledged: bool


FIND_NEIGHBOUR = Statement(
    """
    SELECT asking.status, asking.unacknowledged_since IS NOT NULL AS unacknowledged
    FROM jobs asking JOIN jobs asked ON asked.pipeline_id = asking.pipeline_id
    WHERE asking.token_digest = %(digest)s AND asking.erased_at IS NULL AND asked.id = %(id)s AND asking.id <> asked.id
    """,
    Neighbour,
)


async def find_neighbour(database: Executor, token_digest: bytes, job_id: int) -> Neighbour | None:
    """The job with that token, where it is another one of the pipeline of job `job_id`."""
    return await database.row(FIND_NEIGHBOUR, digest=token_digest, id=job_id)


NOTE_CONTACT = """
    UPDATE jobs SET contacted_at = %(now)s WHERE id = %(id)s
"""


async def note_contact(transaction: Transaction, job_id: int) -> None:
    """The job's runner has been heard of."""
    await transaction.run(NOTE_CONTACT, id=job_id)
