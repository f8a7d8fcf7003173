"""`interruptible`: a push ends the older pipelines of its branch whose jobs all say that they may be ended."""

from api_server.ci.pipelines import actions
from api_server.state.database import Database

FIND_SUPERSEDED = """
    SELECT older.id FROM pipelines JOIN pipelines older
        ON older.project_id = pipelines.project_id AND older.ref = pipelines.ref AND older.id < pipelines.id
    WHERE pipelines.id = %(id)s AND NOT pipelines.tag AND NOT older.tag AND older.source = 'push'
        AND older.status NOT IN ('success', 'failed', 'canceling', 'canceled', 'skipped')
        AND NOT EXISTS (
            SELECT FROM jobs
            WHERE jobs.pipeline_id = older.id AND NOT jobs.retried AND jobs.status NOT IN ('skipped', 'manual')
                AND NOT coalesce((jobs.plan ->> 'interruptible')::boolean, false))
    ORDER BY older.id
"""


async def cancel_superseded(database: Database, pipeline_id: int) -> None:
    """Cancels what the pipeline of a push has made superfluous."""
    for row in await database.rows(FIND_SUPERSEDED, id=pipeline_id):
        async with database.transaction() as transaction:
            await actions.cancel_pipeline(transaction, row.id)
