"""Finding the merge request that a request names, and who may do what with it."""

from aiohttp import web

from api_server.platform.merge_requests import queries
from api_server.platform.projects.access import Project
from api_server.state.database import Executor, Row
from api_server.web import context
from api_server.web.access import Role
from api_server.web.errors import forbidden, record_not_found


def require_readable(project: Project) -> None:
    """Raises 403 for guests of a private project and where the repository is closed to the caller."""
    if project.role < Role.REPORTER and (
        project.visibility == "private" or not project.opens(project.repository_access_level)
    ):
        raise forbidden()


async def find_merge_request(request: web.Request, project: Project, iid: int) -> Row:
    """Its row, with `detailed_merge_status`. Raises 404."""
    found = await queries.find(context.database(request), project.id, iid)
    if found is None:
        raise record_not_found()
    return found


async def may_merge(database: Executor, project: Project, branch: str) -> bool:
    """Whether the caller may put commits into `branch`: as its protection says, Developers where it has none."""
    if project.role < Role.DEVELOPER:
        return False
    rule = await queries.merge_level(database, project.id, branch)
    if not rule.protected:
        return True
    return rule.access_level is not None and project.role >= rule.access_level
