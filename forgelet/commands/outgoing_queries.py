"""Which mirror an id names."""

import attrs

from api_server.state.database import Executor
from api_server.state.statements import Query


@attrs.frozen
class Named:
    """A mirror that runs."""

    id: int


ENABLED_MIRROR = Query(
    """
    SELECT remote_mirrors.id FROM remote_mirrors JOIN projects ON projects.id = remote_mirrors.project_id
    WHERE remote_mirrors.id = %(id)s AND remote_mirrors.enabled
        AND projects.repository_access_level <> 'disabled'
    """,
    Named,
)


async def enabled_mirror(database: Executor, mirror_id: int) -> int:
    """Its id. Raises NotFound also for one that is switched off."""
    return (await database.one(ENABLED_MIRROR, id=mirror_id)).id
