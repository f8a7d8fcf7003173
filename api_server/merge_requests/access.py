"""Finding the merge request that a request names, and who may do what with it."""

from aiohttp import web

from api_server.code.branches.protection import protection_of
from api_server.merge_requests import queries
from api_server.namespaces.projects.access import Project
from api_server.state.database import Row
from api_server.web import context
from api_server.web.errors import record_not_found
from api_server.web.routes import caller


async def find_merge_request(request: web.Request, project: Project, iid: int) -> Row:
    """Its row, with `detailed_merge_status`. Raises 404."""
    found = await queries.find(context.database(request), project.id, iid)
    if found is None:
        raise record_not_found()
    return found


async def may_merge(request: web.Request, project: Project, branch: str) -> bool:
    """Whether the caller may put commits into `branch`, by merging or by pushing."""
    rules = await protection_of(context.database(request), project.id, branch)
    admin = caller(request).admin
    return rules.may_merge(project.role, admin=admin) or rules.may_push(project.role, admin=admin)
