"""Resource groups: of the jobs of a project that name one, at most one is on its way or running."""

from api_server.ci.pipelines import transitions
from api_server.state.database import Transaction

HOLD_RESOURCE_GROUP = """
    SELECT pg_advisory_xact_lock(hashtextextended(%(project_id)s || ':' || %(resource_group)s, 20))
"""

NEXT_FOR_RESOURCE = """
    SELECT jobs.id FROM jobs
    WHERE jobs.project_id = %(project_id)s AND jobs.resource_group = %(resource_group)s
        AND jobs.status = 'waiting_for_resource'
        AND NOT EXISTS (
            SELECT FROM jobs holder
            WHERE holder.project_id = %(project_id)s AND holder.resource_group = %(resource_group)s
                AND holder.status IN ('pending', 'running', 'canceling'))
    ORDER BY jobs.id
    LIMIT 1
"""


async def assign(transaction: Transaction, project_id: int, resource_group: str) -> None:
    """Gives the resource, if nobody has it, to the oldest job that waits for it."""
    await transaction.row(HOLD_RESOURCE_GROUP, project_id=project_id, resource_group=resource_group)
    job_id = await transaction.value(NEXT_FOR_RESOURCE, project_id=project_id, resource_group=resource_group)
    if job_id is not None:
        await transitions.advance(transaction, job_id, "enqueue_waiting_for_resource")
