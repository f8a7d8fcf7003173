"""Who may see and change the pipelines and jobs of a project (decision D1)."""

import datetime

from aiohttp import web

from api_server.ci.pipelines import queries
from api_server.ci.pipelines.queries import Pipeline
from api_server.code.branches.protection import protection_for
from api_server.namespaces.projects.project import Project
from api_server.web import context
from api_server.web.errors import forbidden


async def find_pipeline(request: web.Request, project: Project, pipeline_id: int) -> Pipeline:
    """Raises 404 for one that is not the project's."""
    return await queries.find_pipeline(context.database(request), project.id, pipeline_id)


async def may_change(request: web.Request, project: Project, ref: str, *, tag: bool) -> bool:
    """Whether the caller may run, cancel and erase on this ref: not in archived projects, and where branches are
    protected only who may push."""
    if project.archived or tag:
        return not project.archived
    protection = await protection_for(request, project.id, ref)
    return protection.may_push(project.role, admin=project.admin)


async def check_may_change(request: web.Request, project: Project, ref: str, *, tag: bool) -> None:
    """Raises 403 unless `may_change`."""
    if not await may_change(request, project, ref, tag=tag):
        raise forbidden()


def archived_before(request: web.Request) -> datetime.datetime | None:
    """Jobs made before this moment are archived; None where jobs never are."""
    seconds = context.settings(request).archive_builds_older_than
    return context.now(request) - datetime.timedelta(seconds=seconds) if seconds else None


def check_not_archived(request: web.Request, created_at: datetime.datetime) -> None:
    """Raises 403 for what was made too long ago to be changed."""
    limit = archived_before(request)
    if limit is not None and created_at < limit:
        raise forbidden()
