"""`/projects/:id/users` and `/users/:id/memberships`: memberships as people see them who look for something else."""

from typing import Literal

import attrs
from aiohttp import web

from api_server.accounts.users.lookup import existing_user
from api_server.accounts.users.queries import SEARCH
from api_server.namespaces.members.overview_queries import MEMBERSHIPS, USERS
from api_server.namespaces.members.sources import source_of
from api_server.namespaces.projects.access import project
from api_server.namespaces.projects.project import Project
from api_server.web import context
from api_server.web.auth import READ_USER_SCOPES
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import CommaList
from api_server.web.routes import ADMINISTRATOR, Routes, caller

routes = Routes()


@attrs.frozen(kw_only=True)
class ListProjectUsers(Paginated):
    id: str
    search: str | None = None
    skip_users: CommaList[int] | None = None


@attrs.frozen(kw_only=True)
class ListMemberships(Paginated):
    id: int
    type: Literal["Project", "Namespace"] | None = None


@routes.get("/projects/{id}/users", access=project())
async def list_project_users(request: web.Request, wanted: ListProjectUsers, found: Project) -> web.Response:
    """Direct and inherited members."""
    page = wanted_page(wanted, USERS)
    database, finds_private = context.database(request), caller(request).admin
    listed = await USERS.read(
        database,
        page,
        **source_of(found).everywhere,
        search=wanted.search,
        found=await SEARCH.find(database, wanted.search, finds_private=finds_private),
        finds_private=finds_private,
        user_ids=None,
        skip_users=wanted.skip_users,
    )
    return await paginated(request, page, listed)


@routes.get("/users/{id}/memberships", access=ADMINISTRATOR, scopes=READ_USER_SCOPES)
async def list_memberships(request: web.Request, wanted: ListMemberships) -> web.Response:
    """The projects and groups of which the user is a direct member."""
    database = context.database(request)
    await existing_user(database, wanted.id)
    page = wanted_page(wanted, MEMBERSHIPS)
    listed = await MEMBERSHIPS.read(database, page, user_id=wanted.id, type=wanted.type)
    return await paginated(request, page, listed)
