"""Statements that find the objects named by rows of artifacts, logs and LFS objects."""

from collections.abc import Sequence

import attrs

from api_server.state.database import Executor
from api_server.state.statements import Query

UNNAMED = """
    SELECT ARRAY(
        SELECT stored.key FROM unnest(%(keys)s::text[], %(job_ids)s::bigint[]) AS stored (key, job_id)
        WHERE NOT EXISTS (
                SELECT FROM job_artifacts
                WHERE job_artifacts.job_id = stored.job_id AND job_artifacts.object_key = stored.key)
            AND NOT EXISTS (
                SELECT FROM job_logs WHERE job_logs.job_id = stored.job_id AND job_logs.object_key = stored.key)
            AND NOT EXISTS (SELECT FROM lfs_objects WHERE lfs_objects.object_key = stored.key))
"""


async def unnamed(database: Executor, keys: Sequence[str], job_ids: Sequence[int | None]) -> set[str]:
    """Return the keys that no row names. Only a row of the job in its key can name a job's object."""
    return set(await database.value(UNNAMED, keys=list(keys), job_ids=list(job_ids)))


@attrs.frozen
class Named:
    """An object that a row names; the two ids are the position from which to read on."""

    key: str
    first_id: int
    second_id: str


NAMED = {
    "artifacts": Query(
        """
        SELECT object_key AS key, job_id AS first_id, file_type AS second_id FROM job_artifacts
        WHERE (job_id, file_type) > (%(first_id)s, %(second_id)s) ORDER BY job_id, file_type LIMIT %(most)s::integer
        """,
        Named,
    ),
    "logs": Query(
        """
        SELECT object_key AS key, job_id AS first_id, '' AS second_id FROM job_logs
        WHERE job_id > %(first_id)s AND object_key IS NOT NULL AND %(second_id)s = ''
        ORDER BY job_id LIMIT %(most)s::integer
        """,
        Named,
    ),
    "LFS objects": Query(
        """
        SELECT object_key AS key, project_id AS first_id, oid AS second_id FROM lfs_objects
        WHERE (project_id, oid) > (%(first_id)s, %(second_id)s) ORDER BY project_id, oid LIMIT %(most)s::integer
        """,
        Named,
    ),
}


async def named(database: Executor, kind: str, after: Named | None, most: int) -> list[Named]:
    """Return the next `most` objects that rows of a kind name."""
    return await database.rows(
        NAMED[kind],
        first_id=0 if after is None else after.first_id,
        second_id="" if after is None else after.second_id,
        most=most,
    )
