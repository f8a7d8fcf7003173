"""`/projects/:id/protected_branches` (supporting resource)."""

from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.code.branches import changes, queries
from api_server.namespaces.projects.access import find_project, project
from api_server.web import context
from api_server.web.access import Role
from api_server.web.answers import json_text, no_content
from api_server.web.authorship import author
from api_server.web.errors import bad_parameters, record_not_found
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import parse
from api_server.web.routes import Routes

routes = Routes()

Level = Literal[0, 30, 40, 60]


@attrs.frozen(kw_only=True)
class ListProtected(Paginated):
    id: str
    search: str | None = None


@attrs.frozen(kw_only=True)
class OneProtected:
    id: str
    name: str = attrs.field(metadata={"present": True})


@attrs.frozen(kw_only=True)
class AllowedTo:
    """GitLab's other way to name a level: `allowed_to_push: [{access_level: 40}]`."""

    access_level: Level


@attrs.frozen(kw_only=True)
class WriteProtected(OneProtected):
    push_access_level: Level | None = None
    merge_access_level: Level | None = None
    allowed_to_push: list[AllowedTo] | None = None
    allowed_to_merge: list[AllowedTo] | None = None
    allow_force_push: bool | None = None
    code_owner_approval_required: bool | None = None


@routes.get("/projects/{id}/protected_branches", access=project(Role.MAINTAINER))
async def list_protected(request: web.Request) -> web.Response:
    wanted = await parse(request, ListProtected)
    page = wanted_page(wanted, queries.LISTING, default_sort="asc")
    found = await find_project(request, wanted.id)
    listed = await queries.list_protected(context.database(request), page, found.id, wanted.search)
    return await paginated(request, page, listed)


@routes.get("/projects/{id}/protected_branches/{name}", access=project(Role.MAINTAINER))
async def show_protected(request: web.Request) -> web.Response:
    """`name` is the rule's own, with its wildcards."""
    wanted = await parse(request, OneProtected)
    found = await find_project(request, wanted.id)
    shown = await queries.show_protected(context.database(request), found.id, wanted.name)
    if shown is None:
        raise record_not_found()
    return json_text(shown)


@routes.post("/projects/{id}/protected_branches", access=project(Role.MAINTAINER))
async def protect_branch(request: web.Request) -> web.Response:
    """Protects the branches that match `name`, in which `*` stands for any text; they need not exist yet."""
    wanted = await parse(request, WriteProtected)
    rules = changes.Rules(**_sent(wanted))
    found = await find_project(request, wanted.id)
    async with context.database(request).transaction() as transaction:
        await changes.protect(transaction, found, wanted.name, rules, author(request))
        shown = await queries.show_protected(transaction, found.id, wanted.name)
    return json_text(shown or "null", status=201)


@routes.patch("/projects/{id}/protected_branches/{name}", access=project(Role.MAINTAINER))
async def update_protected(request: web.Request) -> web.Response:
    wanted = await parse(request, WriteProtected)
    changed = _sent(wanted)
    found = await find_project(request, wanted.id)
    async with context.database(request).transaction() as transaction:
        await changes.update(transaction, found, wanted.name, changed, author(request))
        shown = await queries.show_protected(transaction, found.id, wanted.name)
    return json_text(shown or "null")


@routes.delete("/projects/{id}/protected_branches/{name}", access=project(Role.MAINTAINER))
async def unprotect_branch(request: web.Request) -> web.Response:
    wanted = await parse(request, OneProtected)
    found = await find_project(request, wanted.id)
    async with context.database(request).transaction() as transaction:
        await changes.unprotect(transaction, found, wanted.name, author(request))
    return no_content()


def _sent(wanted: WriteProtected) -> dict[str, Any]:
    """The fields of `Rules` that were sent. Raises 400 for more levels than the one that a rule has."""
    values = {
        "push_access_level": _level("push", wanted.push_access_level, wanted.allowed_to_push),
        "merge_access_level": _level("merge", wanted.merge_access_level, wanted.allowed_to_merge),
        "allow_force_push": wanted.allow_force_push,
        "code_owner_approval_required": wanted.code_owner_approval_required,
    }
    return {field: value for field, value in values.items() if value is not None}


def _level(verb: str, level: Level | None, allowed: list[AllowedTo] | None) -> Level | None:
    if not allowed:
        return level
    if len(allowed) > 1 or level is not None:
        raise bad_parameters(f"allowed_to_{verb} does not have a valid value")
    return allowed[0].access_level
