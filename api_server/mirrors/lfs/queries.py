"""Statements about the LFS objects that a mirror's target has not got yet."""

from collections.abc import Collection

import attrs

from api_server.mirrors.queries import Mirror
from api_server.state.database import Executor, Transaction
from api_server.state.statements import Query


@attrs.frozen
class Debt:
    """Whether the commits that the target has have been looked through (`lfs_followed`), and whether there are objects
    that it should have and has not got (`owes`)."""

    lfs_followed: bool
    owes: bool


DEBT = Query(
    """
    SELECT remote_mirrors.lfs_followed, EXISTS (
        SELECT FROM remote_mirror_lfs_owed owed
        JOIN lfs_objects ON lfs_objects.oid = owed.oid AND lfs_objects.project_id = remote_mirrors.project_id
        WHERE owed.mirror_id = remote_mirrors.id) AS owes
    FROM remote_mirrors
    WHERE remote_mirrors.id = %(id)s AND remote_mirrors.run = %(run)s
        AND EXISTS (SELECT FROM lfs_objects WHERE lfs_objects.project_id = remote_mirrors.project_id)
    """,
    Debt,
)


async def debt(database: Executor, mirror: Mirror) -> Debt | None:
    """None where the project has no objects at all, or the run does not count any more."""
    return await database.row(DEBT, id=mirror.id, run=mirror.run)


@attrs.frozen
class OwedObject:
    """An object of the project that its mirror's target is to have."""

    oid: str
    size: int
    object_key: str


OWED_OBJECTS = Query(
    """
    SELECT lfs_objects.oid, lfs_objects.size, lfs_objects.object_key FROM lfs_objects
    WHERE lfs_objects.project_id = %(project_id)s AND lfs_objects.oid IN (
        SELECT unnest(%(new)s::text[])
        UNION SELECT owed.oid FROM remote_mirror_lfs_owed owed WHERE owed.mirror_id = %(id)s)
    ORDER BY lfs_objects.oid
    """,
    OwedObject,
)


async def owed_objects(database: Executor, mirror: Mirror, new: Collection[str]) -> list[OwedObject]:
    """What the project has of the `new` objects and of those owed since earlier runs."""
    return await database.rows(OWED_OBJECTS, id=mirror.id, project_id=mirror.project_id, new=list(new))


NOTE = """
    WITH mirror AS (
        UPDATE remote_mirrors SET lfs_followed = true WHERE id = %(id)s AND run = %(run)s RETURNING id
    ), arrived AS (
        DELETE FROM remote_mirror_lfs_owed owed USING mirror
        WHERE owed.mirror_id = mirror.id AND owed.oid = ANY (%(arrived)s)
    )
    INSERT INTO remote_mirror_lfs_owed (mirror_id, oid)
    SELECT mirror.id, oid FROM mirror, unnest(%(owed)s::text[]) AS oid
    ON CONFLICT DO NOTHING
"""


async def note(
    transaction: Transaction, mirror: Mirror, *, arrived: Collection[str], owed: Collection[str]
) -> None:
    """What the target has now, and what it has not although its commits point to it."""
    await transaction.run(NOTE, id=mirror.id, run=mirror.run, arrived=list(arrived), owed=list(owed))


LOOK_THROUGH_ALL = """
    UPDATE remote_mirrors SET lfs_followed = false WHERE id = %(id)s AND run = %(run)s
"""


async def look_through_all(transaction: Transaction, mirror: Mirror) -> None:
    """The next run begins with the first commit."""
    await transaction.run(LOOK_THROUGH_ALL, id=mirror.id, run=mirror.run)
