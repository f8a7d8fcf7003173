"""Which repositories belong to no project."""

from collections.abc import Sequence

import attrs

from api_server.state.database import Executor
from api_server.state.statements import Query


@attrs.frozen
class Orphan:
    id: int


#: A number that has never been given out is of a database that was newer than this one.
WITHOUT_PROJECT = Query(
    """
    SELECT given.id FROM unnest(%(ids)s::bigint[]) AS given (id)
    WHERE NOT EXISTS (SELECT FROM projects WHERE projects.id = given.id)
        AND given.id <= pg_sequence_last_value(pg_get_serial_sequence('projects', 'id')::regclass)
    """,
    Orphan,
)


async def without_project(database: Executor, ids: Sequence[int]) -> list[int]:
    """Those of the ids that were a project's, or were to be, and are not."""
    return [row.id for row in await database.rows(WITHOUT_PROJECT, ids=list(ids))]
