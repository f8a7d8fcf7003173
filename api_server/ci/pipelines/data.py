"""What jobs leave behind, logs and artifacts, and its removal."""

from collections.abc import Sequence

from api_server.ci.pipelines import task_names
from api_server.state.database import Transaction
from api_server.state.queue import enqueue

DELETE_ROWS = """
    WITH artifacts AS (
        DELETE FROM job_artifacts WHERE job_id = ANY (%(ids)s) RETURNING object_key
    ), logs AS (
        DELETE FROM job_logs WHERE job_id = ANY (%(ids)s) RETURNING object_key
    ), reports AS (
        DELETE FROM job_report_variables WHERE job_id = ANY (%(ids)s)
    ), jobs AS (
        UPDATE jobs SET artifacts_expire_at = NULL WHERE id = ANY (%(ids)s) AND artifacts_expire_at IS NOT NULL
    )
    SELECT object_key FROM artifacts UNION SELECT object_key FROM logs WHERE object_key IS NOT NULL
"""


async def delete_job_data(transaction: Transaction, *job_ids: int) -> None:
    """Removes the logs and the artifacts of jobs: the rows now, the bytes by queued work once this has committed."""
    rows = await transaction.rows(DELETE_ROWS, ids=list(job_ids))
    await delete_objects(transaction, [row.object_key for row in rows])


async def delete_objects(transaction: Transaction, keys: Sequence[str]) -> None:
    """Removes the bytes of what this transaction has deleted, once it has committed."""
    if keys:
        await enqueue(transaction, task_names.DELETE_OBJECTS, keys=list(keys))
