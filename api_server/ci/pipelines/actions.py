"""What people do to jobs and pipelines: cancel, retry, play, erase, remove; each in the caller's transaction.

Whether they may is decided before (`access`); here it is decided, under the pipeline's lock, whether it can be.
"""

from collections.abc import Mapping

from api_server.ci.pipelines import queries, transitions
from api_server.ci.pipelines.data import delete_job_data
from api_server.ci.pipelines.states import ERASABLE, RETRYABLE
from api_server.state.database import Row, Transaction


async def cancel(transaction: Transaction, job_id: int, *, force: bool = False) -> None:
    """Cancels the job, at once or (a runner that knows how) after its `after_script`. Does nothing to a finished one;
    `force` ends the waiting for `after_script`."""
    row = await queries.lock_job(transaction, job_id)
    if row is None:
        return
    if force:
        await transitions.transit(transaction, [job_id], "force_cancel")
    elif row.status == "running" and row.cancels_gracefully:
        await transitions.transit(transaction, [job_id], "cancel_gracefully")
    else:
        await transitions.transit(transaction, [job_id], "cancel")
    await transitions.refresh(transaction, row.pipeline_id)


async def retry(
    transaction: Transaction, job_id: int, user_id: int, variables: Mapping[str, bytes] | None = None
) -> Row | None:
    """The new job that takes this one's place, on its way already; None where the job cannot be retried."""
    row = await queries.lock_job(transaction, job_id)
    if row is None or row.retried or row.status not in RETRYABLE:
        return None
    again = await transitions.run_again(transaction, row, user_id=user_id)
    if variables is not None:
        await queries.set_job_variables(transaction, again.id, variables)
    await transitions.put_on_its_way(transaction, again)
    await transitions.refresh(transaction, row.pipeline_id)
    return again


async def play(
    transaction: Transaction, job_id: int, user_id: int, variables: Mapping[str, bytes]
) -> int | None:
    """Starts a job that waits for a person or for its moment; one of those kinds that has run is run again, as a new
    job. The id of the job that is on its way, None where the job cannot be played. `variables` are encrypted."""
    row = await queries.lock_job(transaction, job_id)
    if row is None:
        return None
    if row.status in RETRYABLE and row.when_run in ("manual", "delayed") and row.kind == "build":
        again = await retry(transaction, job_id, user_id, variables or None)
        return None if again is None else again.id
    if row.status not in ("manual", "scheduled") or (row.kind == "bridge" and row.status != "manual"):
        return None
    await queries.set_job_variables(transaction, job_id, variables)
    await transitions.put_on_its_way(transaction, row, user_id=user_id)
    await transitions.refresh(transaction, row.pipeline_id)
    return job_id


async def erase(transaction: Transaction, job_id: int, user_id: int) -> bool:
    """Removes the job's log and artifacts; False where it has none or has not finished."""
    row = await queries.lock_job(transaction, job_id)
    if row is None or row.status not in ERASABLE or not await queries.has_data(transaction, job_id):
        return False
    await delete_job_data(transaction, job_id)
    await queries.mark_erased(transaction, job_id, user_id)
    return True


async def cancel_pipeline(transaction: Transaction, pipeline_id: int) -> None:
    """Cancels all jobs that have not finished, those of child pipelines by queued work."""
    if await queries.lock_pipeline(transaction, pipeline_id) is None:
        return
    rows = await queries.latest_jobs(transaction, pipeline_id)
    graceful = [row.id for row in rows if row.status == "running" and row.cancels_gracefully]
    await transitions.transit(transaction, graceful, "cancel_gracefully")
    await transitions.transit(transaction, [row.id for row in rows if row.id not in graceful], "cancel")
    await transitions.refresh(transaction, pipeline_id)


async def retry_pipeline(transaction: Transaction, pipeline_id: int, user_id: int) -> None:
    """Runs again what failed or was canceled, and gives what was skipped its turn again."""
    if await queries.lock_pipeline(transaction, pipeline_id) is None:
        return
    for row in await queries.latest_jobs(transaction, pipeline_id):
        if row.status in ("failed", "canceled"):
            await transitions.run_again(transaction, row, user_id=user_id)
        elif row.status == "skipped":
            await transitions.transit(transaction, [row.id], "process", user_id=user_id)
    await transitions.refresh(transaction, pipeline_id)


async def delete_pipeline(transaction: Transaction, pipeline_id: int) -> None:
    """Removes the pipeline, its jobs, their logs and artifacts."""
    await queries.lock_pipeline(transaction, pipeline_id)
    for job_id in await queries.jobs_with_data(transaction, pipeline_id):
        await delete_job_data(transaction, job_id)
    for row in await queries.latest_jobs(transaction, pipeline_id):
        await transitions.release_resource(transaction, row)
    await queries.delete_pipeline(transaction, pipeline_id)
