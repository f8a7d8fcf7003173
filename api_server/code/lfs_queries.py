# mypy: disable-error-code="empty-body"
"""Statements about LFS objects."""

from collections.abc import Collection

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.statements import Query


@attrs.frozen
class _Size:
    oid: str
    size: int


SIZES = Query(
    "SELECT oid, size FROM lfs_objects WHERE project_id = %(project_id)s AND oid = ANY (%(oids)s)",
    _Size,
)


async def sizes(database: Executor, project_id: int, oids: Collection[str]) -> dict[str, int]:
    """Return the sizes in bytes of those objects that the project has, by their ids."""
    rows = await database.rows(SIZES, project_id=project_id, oids=list(oids))
    return {row.oid: row.size for row in rows}


@attrs.frozen
class Stored:
    """The key and the size in bytes of a stored object."""

    object_key: str
    size: int


@statement("SELECT object_key, size FROM lfs_objects WHERE project_id = %(project_id)s AND oid = %(oid)s")
async def find_object(database: Executor, project_id: int, oid: str) -> Stored | None: ...


ADD_OBJECT = """
    INSERT INTO lfs_objects (project_id, oid, size, object_key, created_at)
    SELECT projects.id, %(oid)s, %(size)s, %(object_key)s, %(now)s::timestamptz
    FROM projects WHERE projects.id = %(project_id)s
    ON CONFLICT DO NOTHING
"""


async def add_object(
    transaction: Transaction, project_id: int, oid: str, *, size: int, object_key: str
) -> bool:
    """Add the object to the project. Return False if the project already has it or no longer exists."""
    added = await transaction.run(
        ADD_OBJECT, project_id=project_id, oid=oid, size=size, object_key=object_key
    )
    return added > 0


#: Reads the index entries of that project's objects and nothing else.
@statement("""
    SELECT coalesce(sum(lfs_objects.size), 0)::bigint FROM lfs_objects WHERE lfs_objects.project_id = %(project_id)s
""")
async def lfs_bytes(database: Executor, project_id: int) -> int:
    """Return the bytes of all LFS objects of the project."""
