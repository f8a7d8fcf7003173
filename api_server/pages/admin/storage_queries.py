"""Statements about what the external storage can be asked for."""

import attrs

from api_server.state.database import Executor
from api_server.state.statements import Query


@attrs.frozen
class Holder:
    """A project with files, perhaps."""

    id: int
    full_path: str
    default_branch: str


_HOLDERS = """
    SELECT projects.id, projects.full_path, projects.default_branch FROM projects
    WHERE projects.repository_access_level = 'enabled' AND projects.visibility = %(visibility)s
    ORDER BY projects.id DESC LIMIT %(most)s::integer
"""
HOLDERS = Query(_HOLDERS, Holder)


async def holders(database: Executor, visibility: str, most: int) -> list[Holder]:
    """The newest projects of that visibility whose repository is open to all who see them."""
    return await database.rows(HOLDERS, visibility=visibility, most=most)
