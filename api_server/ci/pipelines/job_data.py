"""Removing what jobs leave behind, logs and artifacts."""

from collections.abc import Sequence

from api_server.ci.pipelines import job_queries
from api_server.state.database import Transaction
from api_server.state.queue import enqueue

#: The background work that removes bytes.
DELETE_OBJECTS = "delete_objects"


async def delete_job_data(transaction: Transaction, *job_ids: int) -> None:
    """Removes the logs and the artifacts of jobs: the rows now, the bytes by queued work once this has committed."""
    await delete_objects(transaction, await job_queries.delete_job_data(transaction, job_ids))


async def delete_objects(transaction: Transaction, keys: Sequence[str]) -> None:
    """Removes the bytes of what this transaction has deleted, once it has committed."""
    if keys:
        await enqueue(transaction, DELETE_OBJECTS, keys=list(keys))
