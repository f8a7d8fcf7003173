"""Statements about LFS objects."""

from collections.abc import Collection

from api_server.state.database import Executor, Row, Transaction

SIZES = """
    SELECT oid, size FROM lfs_objects WHERE project_id = %(project_id)s AND oid = ANY (%(oids)s)
"""


async def sizes(database: Executor, project_id: int, oids: Collection[str]) -> dict[str, int]:
    """Those of the objects that the project has, with their sizes in bytes."""
    rows = await database.rows(SIZES, project_id=project_id, oids=list(oids))
    return {row.oid: row.size for row in rows}


FIND_OBJECT = """
    SELECT lfs_objects.* FROM lfs_objects WHERE project_id = %(project_id)s AND oid = %(oid)s
"""


async def find_object(database: Executor, project_id: int, oid: str) -> Row | None:
    return await database.row(FIND_OBJECT, project_id=project_id, oid=oid)


ADD_OBJECT = """
    INSERT INTO lfs_objects (project_id, oid, size, object_key)
    SELECT projects.id, %(oid)s, %(size)s, %(object_key)s FROM projects WHERE projects.id = %(project_id)s
    ON CONFLICT DO NOTHING
    RETURNING oid
"""


async def add_object(
    transaction: Transaction, project_id: int, oid: str, *, size: int, object_key: str
) -> bool:
    """False where the project has the object already, or is gone."""
    added = await transaction.row(
        ADD_OBJECT, project_id=project_id, oid=oid, size=size, object_key=object_key
    )
    return added is not None
