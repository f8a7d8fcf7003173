"""`/projects/:id/protected_branches` (supporting resource)."""

from typing import Any

import attrs
from aiohttp import web

from api_server.code.branches import changes, queries
from api_server.code.branches.levels import AllowedTo, Level, check_allowed, level_of
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
    search: str | None = None


@attrs.frozen(kw_only=True)
class OneProtected:
    id: str
    name: str = attrs.field(metadata={"present": True})


@attrs.frozen(kw_only=True)
class WriteProtected(OneProtected):
    push_access_level: Level | None = None
    merge_access_level: Level | None = None
    allowed_to_push: list[AllowedTo] | None = None
    allowed_to_merge: list[AllowedTo] | None = None
    allow_force_push: bool | None = None
    code_owner_approval_required: bool | None = None

    def __attrs_post_init__(self) -> None:
        for verb, level, allowed in (
            ("push", self.push_access_level, self.allowed_to_push),
            ("merge", self.merge_access_level, self.allowed_to_merge),
        ):
            check_allowed(f"allowed_to_{verb}", level, allowed or [])

    def sent(self) -> dict[str, Any]:
        """The fields of `Rules` that were sent; a rule has one level for pushes and one for merges."""
        values = {
            "push_access_level": level_of(self.push_access_level, self.allowed_to_push),
            "merge_access_level": level_of(self.merge_access_level, self.allowed_to_merge),
            "allow_force_push": self.allow_force_push,
            "code_owner_approval_required": self.code_owner_approval_required,
        }
        return {field: value for field, value in values.items() if value is not None}


@routes.get("/projects/{id}/protected_branches", access=project(Role.MAINTAINER))
async def list_protected(request: web.Request, wanted: ListProtected, found: Project) -> web.Response:
    page = wanted_page(wanted, queries.LISTING, default_sort="asc")
    listed = await queries.list_protected(context.database(request), page, found.id, wanted.search)
    return await paginated(request, page, listed)


@routes.get("/projects/{id}/protected_branches/{name}", access=project(Role.MAINTAINER))
async def show_protected(request: web.Request, wanted: OneProtected, found: Project) -> web.Response:
    """`name` is the rule's own, with its wildcards."""
    return json_text(await queries.show_protected(context.database(request), found.id, wanted.name))


@routes.post(
    "/projects/{id}/protected_branches",
    access=project(Role.MAINTAINER),
    ends="project:{id}",
)
async def protect_branch(request: web.Request, wanted: WriteProtected, found: Project) -> web.Response:
    """Protects the branches that match `name`, in which `*` stands for any text; they need not exist yet."""
    rules = changes.Rules(**wanted.sent())
    async with context.database(request).transaction() as transaction:
        await changes.protect(transaction, found, wanted.name, rules, author(request))
        shown = await queries.show_protected(transaction, found.id, wanted.name)
    return json_text(shown, status=201)


@routes.patch(
    "/projects/{id}/protected_branches/{name}",
    access=project(Role.MAINTAINER),
    ends="project:{id}",
)
async def update_protected(request: web.Request, wanted: WriteProtected, found: Project) -> web.Response:
    async with context.database(request).transaction() as transaction:
        await changes.update(transaction, found, wanted.name, wanted.sent(), author(request))
        shown = await queries.show_protected(transaction, found.id, wanted.name)
    return json_text(shown)


@routes.delete(
    "/projects/{id}/protected_branches/{name}", access=project(Role.MAINTAINER), ends="project:{id}"
)
async def unprotect_branch(request: web.Request, wanted: OneProtected, found: Project) -> web.Response:
    listeners = request.config_dict[changes.END_OF_PROTECTION_LISTENERS]
    async with context.database(request).transaction() as transaction:
        await changes.unprotect(transaction, found, wanted.name, author(request), listeners)
    return no_content()
