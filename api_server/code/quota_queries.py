"""Statements about what projects take up."""

from api_server.state.database import Executor

#: Reads the index entries of that project's objects and nothing else.
LFS_BYTES = """
    SELECT coalesce(sum(lfs_objects.size), 0)::bigint FROM lfs_objects WHERE lfs_objects.project_id = %(project_id)s
"""


async def lfs_bytes(database: Executor, project_id: int) -> int:
    """Of all LFS objects of the project."""
    return int(await database.value(LFS_BYTES, project_id=project_id))
