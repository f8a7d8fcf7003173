"""`/projects/:id/protected_tags` (supporting resource)."""

import attrs
from aiohttp import web

from api_server.code.branches.levels import AllowedTo, Level, check_allowed, level_of
from api_server.code.tags import changes, queries
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.answers import json_text, no_content
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.routes import Role, Routes, author

routes = Routes()


@attrs.frozen(kw_only=True)
class ListProtected(Paginated):
    id: str


@attrs.frozen(kw_only=True)
class OneProtected:
    id: str
    name: str = attrs.field(metadata={"present": True})


@attrs.frozen(kw_only=True)
class ProtectTag(OneProtected):
    create_access_level: Level | None = None
    allowed_to_create: list[AllowedTo] | None = None

    def __attrs_post_init__(self) -> None:
        check_allowed("allowed_to_create", self.create_access_level, self.allowed_to_create or [])

    @property
    def level(self) -> int:
        """Maintainers without any."""
        level = level_of(self.create_access_level, self.allowed_to_create)
        return Role.MAINTAINER if level is None else level


@routes.get("/projects/{id}/protected_tags", access=project(Role.MAINTAINER))
async def list_protected(request: web.Request, wanted: ListProtected, found: Project) -> web.Response:
    page = wanted_page(wanted, queries.LISTING, default_sort="asc")
    return await paginated(
        request, page, await queries.list_protected(context.database(request), page, found.id)
    )


@routes.get("/projects/{id}/protected_tags/{name}", access=project(Role.MAINTAINER))
async def show_protected(request: web.Request, wanted: OneProtected, found: Project) -> web.Response:
    """`name` is the rule's own, with its wildcards."""
    return json_text(await queries.show_protected(context.database(request), found.id, wanted.name))


@routes.post("/projects/{id}/protected_tags", access=project(Role.MAINTAINER), ends="project:{id}")
async def protect_tag(request: web.Request, wanted: ProtectTag, found: Project) -> web.Response:
    """Protects the tags that match `name`, in which `*` stands for any text; they need not exist yet."""
    async with context.database(request).transaction() as transaction:
        await changes.protect(transaction, found, wanted.name, wanted.level, author(request))
        shown = await queries.show_protected(transaction, found.id, wanted.name)
    return json_text(shown, status=201)


@routes.delete("/projects/{id}/protected_tags/{name}", access=project(Role.MAINTAINER), ends="project:{id}")
async def unprotect_tag(request: web.Request, wanted: OneProtected, found: Project) -> web.Response:
    async with context.database(request).transaction() as transaction:
        await changes.unprotect(transaction, found, wanted.name, author(request))
    return no_content()
