"""Removing what old jobs left behind: their logs and artifacts; the jobs themselves stay."""

import datetime
from collections.abc import AsyncIterator

import attrs

from api_server.ci.jobs import upkeep_queries as queries
from api_server.ci.pipelines.transitions import delete_job_data
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, SYSTEM
from api_server.state.database import Database, Transaction

#: Jobs whose data is removed in one transaction.
BATCH = 100


@attrs.frozen
class Removed:
    """What a batch had: how many jobs, and bytes in all."""

    jobs: int
    bytes: int


async def remove_before(
    database: Database, moment: datetime.datetime, *, dry_run: bool
) -> AsyncIterator[Removed]:
    """Batch after batch of the jobs that finished before `moment`, removed when it is yielded.

    Each batch is one transaction, so it may be stopped anywhere, and a further run finds what is left.
    """
    after = 0
    while ids := await queries.old_jobs(database, after=after, before=moment, most=BATCH):
        after = ids[-1]
        size = await queries.size_of_data(database, ids)
        if not dry_run:
            async with database.transaction() as transaction:
                await delete_job_data(transaction, *ids)
                await _record(transaction, len(ids), moment)
        yield Removed(len(ids), size)


async def _record(transaction: Transaction, jobs: int, before: datetime.datetime) -> None:
    await audit_trail.record(
        transaction,
        "job_data_removed",
        author=SYSTEM,
        entity=INSTANCE,
        target_id=None,
        target_details="logs and artifacts",
        message=f"Removed the logs and artifacts of {jobs} jobs",
        before=before.isoformat(),
        jobs=jobs,
    )
