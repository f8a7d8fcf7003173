"""The queue's clock, which is PostgreSQL's own, and what is due by the application's.

procrastinate's statements ask `now()`. On the queue's connections (`search_path`) that is the function made here.
"""

import attrs

from api_server.state.database import Executor
from api_server.state.statements import Query
from api_server.testing.table_queries import SCHEMA

MAKE_CLOCK = f"""
    CREATE TABLE IF NOT EXISTS {SCHEMA}.clock (ahead interval NOT NULL);
    DELETE FROM {SCHEMA}.clock;
    INSERT INTO {SCHEMA}.clock VALUES ('0');
    CREATE OR REPLACE FUNCTION {SCHEMA}.now() RETURNS timestamptz LANGUAGE sql STABLE AS
        'SELECT pg_catalog.now() + ahead FROM {SCHEMA}.clock'
"""

#: Workers have been heard of as long ago as before.
MOVE_CLOCK = f"""
    UPDATE procrastinate_workers SET last_heartbeat = last_heartbeat + %(ahead)s - ahead FROM {SCHEMA}.clock;
    UPDATE {SCHEMA}.clock SET ahead = %(ahead)s
"""


@attrs.frozen
class Due:
    """A kind of work that is due or under way."""

    name: str


DUE = Query(
    """
    SELECT DISTINCT task_name::text AS name FROM procrastinate_jobs
    WHERE status = 'doing' OR status = 'todo' AND (scheduled_at IS NULL OR scheduled_at <= %(now)s)
    ORDER BY 1
    """,
    Due,
)


async def due(database: Executor) -> list[str]:
    """The names of tasks that are due or under way."""
    return [one.name for one in await database.rows(DUE)]
