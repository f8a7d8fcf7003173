"""Everything that moves a job: one event, then what follows from it, in the caller's transaction.

Locks are taken in one order: the pipeline's row, then its jobs. What concerns another pipeline (the bridge that waits
for this one, the next job of a resource group) is queued and runs in a transaction of its own.
"""

from typing import Any

from api_server.platform.pipelines import queries
from api_server.platform.pipelines.states import Event
from api_server.state.database import Row, Transaction


async def advance(transaction: Transaction, job_id: int, event: Event, **values: Any) -> Row | None:
    """`event` happens to the job; `values` are those of `queries.transit` (failure_reason, exit_code, ...).

    Gives the job's new row, after the jobs that this lets go on have gone on and the pipeline's status is true again;
    None where the event does not apply to the job's status (or there is no such job), and then nothing changed.
    """
    if await queries.lock_pipeline_of_job(transaction, job_id) is None:
        return None
    moved = await queries.transit(transaction, [job_id], event, **values)
    if not moved:
        return None
    await refresh(transaction, moved[0].pipeline_id)
    return moved[0]


async def start(
    transaction: Transaction,
    job_id: int,
    *,
    runner_id: int,
    runner_manager_id: int | None,
    token_digest: bytes,
    cancels_gracefully: bool,
) -> Row | None:
    """Hands a pending build out to a runner: its new row, or None where somebody else has been faster.

    Does not touch the pipeline, so that a caller may hold the job's row by FOR UPDATE SKIP LOCKED already: commit,
    and then call `refresh` for `row.pipeline_id` in a transaction of its own.
    """
    moved = await queries.transit(
        transaction,
        [job_id],
        "run",
        runner_id=runner_id,
        runner_manager_id=runner_manager_id,
        token_digest=token_digest,
        cancels_gracefully=cancels_gracefully,
    )
    return moved[0] if moved else None


async def refresh(transaction: Transaction, pipeline_id: int) -> None:
    """Lets the pipeline's jobs go on as far as they can, and brings its status and times up to date."""
    await queries.lock_pipeline(transaction, pipeline_id)
