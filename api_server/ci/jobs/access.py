"""Finding the job that a request names, and who may change it."""

from aiohttp import web

from api_server.ci.jobs import queries
from api_server.ci.pipelines.access import check_may_change
from api_server.namespaces.projects.access import Project
from api_server.state.database import Row
from api_server.web import context
from api_server.web.access import Role
from api_server.web.errors import forbidden, record_not_found
from api_server.web.routes import caller


async def find_job(request: web.Request, project: Project, job_id: int, *, or_bridge: bool = False) -> Row:
    """The project's job; raises 404 for others, and for bridges where those are not meant."""
    row = await queries.find_job(context.database(request), project.id, job_id)
    if row is None or (row.kind == "bridge" and not or_bridge):
        raise record_not_found()
    return row


async def find_changeable_job(
    request: web.Request, project: Project, job_id: int, *, or_bridge: bool = False
) -> Row:
    """As `find_job`; raises 403 where the job's ref is protected from the caller."""
    row = await find_job(request, project, job_id, or_bridge=or_bridge)
    await check_may_change(request, project, row.ref, tag=row.tag)
    return row


def check_may_erase(request: web.Request, project: Project, job: Row) -> None:
    """Raises 403 for Developers but on jobs of their own on refs that are not protected."""
    own = job.user_id == caller(request).user_id and not job.protected
    if project.role < Role.MAINTAINER and not own:
        raise forbidden()
