"""`/merge_requests`, and the same of a group and of a project (supporting resource)."""

from aiohttp import web

from api_server.merge_requests.handlers import PATH
from api_server.merge_requests.lists import queries
from api_server.merge_requests.lists.parameters import (
    ListOfAll,
    ListOfGroup,
    ListOfProject,
    filters_of,
)
from api_server.namespaces.access import group, project
from api_server.namespaces.resources import Group, Project
from api_server.web import context
from api_server.web.pagination import paginated, wanted_page
from api_server.web.routes import SIGNED_IN, Role, Routes, caller

routes = Routes()


@routes.get("/merge_requests", access=SIGNED_IN)
async def list_merge_requests(request: web.Request, wanted: ListOfAll) -> web.Response:
    """Newest first; those that match every filter, of all projects whose files the caller may read."""
    return await _readable(request, wanted)


@routes.get("/groups/{id}/merge_requests", access=group())
async def list_of_group(request: web.Request, wanted: ListOfGroup, found: Group) -> web.Response:
    """Likewise, of the projects of a group and of the groups below it."""
    return await _readable(request, wanted, found)


async def _readable(
    request: web.Request, wanted: ListOfAll | ListOfGroup, found: Group | None = None
) -> web.Response:
    page = wanted_page(wanted, queries.OF_ALL if found is None else queries.BELOW_GROUP)
    who = caller(request)
    listed = await queries.list_readable(
        context.database(request),
        page,
        viewer_id=who.user_id,
        # whoever has a role in a group has it in all of its projects
        sees_all=who.admin or (found is not None and found.role >= Role.REPORTER),
        non_archived=wanted.non_archived,
        filters=filters_of(wanted, who.user_id),
        group_id=None if found is None else found.id,
    )
    return await paginated(request, page, listed)


@routes.get(PATH, access=project(opens="repository"), takes_job_token=True)
async def list_of_project(request: web.Request, wanted: ListOfProject, found: Project) -> web.Response:
    """Newest first; those that match every filter."""
    page = wanted_page(wanted, queries.OF_PROJECT)
    filters = filters_of(wanted, caller(request).user_id)
    listed = await queries.list_of_project(context.database(request), page, found.id, filters)
    return await paginated(request, page, listed)
