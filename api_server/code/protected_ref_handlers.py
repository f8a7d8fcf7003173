"""`/projects/:id/protected_branches` and `/protected_tags` (supporting resources)."""

from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.code import protected_ref_queries, protected_refs
from api_server.code.protection import NOBODY
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.web.answers import json_text, no_content
from api_server.web.auth import Actor
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.routes import Role, Routes

Level = Literal[0, 30, 40, 60]


@attrs.frozen(kw_only=True)
class AllowedTo:
    """GitLab's other way to give a level: `allowed_to_push: [{access_level: 40}]`. When a rule is changed, `{id: 7,
    _destroy: true}` removes the level that it had. Rules name levels only, not users, groups or keys."""

    id: int | None = None
    access_level: Level | None = None
    destroyed: bool = attrs.field(default=False, metadata={"name": "_destroy"})
    user_id: int | None = None
    group_id: int | None = None
    deploy_key_id: int | None = None

    @property
    def unsupported(self) -> list[str]:
        """The parameters that were sent although rules do not support them."""
        return [name for name in ("user_id", "group_id", "deploy_key_id") if getattr(self, name) is not None]


def check_allowed(name: str, level: Level | None, allowed: list[AllowedTo]) -> None:
    """Raise `ValueError` for more than one level, for entries without a level, and for unsupported parameters."""
    unsupported = [f"{name}[{key}]" for entry in allowed for key in entry.unsupported]
    if unsupported:
        verb = "is" if len(unsupported) == 1 else "are"
        raise ValueError(f"{', '.join(unsupported)} {verb} not supported by this service")
    staying = [entry for entry in allowed if not entry.destroyed]
    if (
        len(staying) > 1
        or (allowed and level is not None)
        or any(entry.access_level is None for entry in staying)
    ):
        raise ValueError(f"{name} does not have a valid value")


def level_of(level: Level | None, allowed: list[AllowedTo] | None) -> Level | None:
    """Return the level that either of the two parameters gives: None if neither was sent, and `NOBODY` if the level is
    removed without a new one."""
    if not allowed:
        return level
    return next((entry.access_level for entry in allowed if not entry.destroyed), NOBODY)


routes = Routes()


@attrs.frozen(kw_only=True)
class ListProtectedBranches(Paginated):
    id: str
    search: str | None = None


@attrs.frozen(kw_only=True)
class OneProtected:
    id: str
    name: str = attrs.field(metadata={"present": True})


@attrs.frozen(kw_only=True)
class WriteProtectedBranch(OneProtected):
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

    def rules(self) -> dict[str, Any]:
        """Return the fields of `Rules` that were sent; a rule has one level for pushes and one for merges."""
        values = {
            "push_access_level": level_of(self.push_access_level, self.allowed_to_push),
            "merge_access_level": level_of(self.merge_access_level, self.allowed_to_merge),
            "allow_force_push": self.allow_force_push,
            "code_owner_approval_required": self.code_owner_approval_required,
        }
        return {field: value for field, value in values.items() if value is not None}


@routes.get(
    "/projects/{id}/protected_branches", access=project(Role.MAINTAINER), answers="200 [ProtectedBranch]"
)
async def list_protected_branches(
    request: web.Request, services: Services, params: ListProtectedBranches, project: Project
) -> web.Response:
    page = requested_page(params, protected_ref_queries.BRANCH_LISTING, default_sort="asc")
    rows = await protected_ref_queries.list_protected_branches(
        services.database, page, project.id, params.search
    )
    return await paginated(request, page, rows)


@routes.get(
    "/projects/{id}/protected_branches/{name}", access=project(Role.MAINTAINER), answers="200 ProtectedBranch"
)
async def show_protected_branch(services: Services, params: OneProtected, project: Project) -> web.Response:
    """Show the rule for branches that is called `name`, with its wildcards."""
    return json_text(
        await protected_ref_queries.show_protected_branch(services.database, project.id, params.name)
    )


@routes.post(
    "/projects/{id}/protected_branches",
    access=project(Role.MAINTAINER),
    revokes="project:{id}",
    answers="201 ProtectedBranch",
)
async def protect_branch(
    services: Services, actor: Actor, params: WriteProtectedBranch, project: Project
) -> web.Response:
    """Protect the branches that match `name`, in which `*` stands for any text. They need not exist yet."""
    rules = protected_refs.Rules(**params.rules())
    async with services.database.transaction() as transaction:
        await protected_refs.protect_branch(transaction, project, params.name, rules, actor.author)
        entity = await protected_ref_queries.show_protected_branch(transaction, project.id, params.name)
    return json_text(entity, status=201)


@routes.patch(
    "/projects/{id}/protected_branches/{name}",
    access=project(Role.MAINTAINER),
    revokes="project:{id}",
    answers="200 ProtectedBranch",
)
async def update_protected_branch(
    services: Services, actor: Actor, params: WriteProtectedBranch, project: Project
) -> web.Response:
    async with services.database.transaction() as transaction:
        await protected_refs.update_branch(transaction, project, params.name, params.rules(), actor.author)
        entity = await protected_ref_queries.show_protected_branch(transaction, project.id, params.name)
    return json_text(entity)


@routes.delete(
    "/projects/{id}/protected_branches/{name}",
    access=project(Role.MAINTAINER),
    revokes="project:{id}",
    answers="204",
)
async def unprotect_branch(
    services: Services, actor: Actor, params: OneProtected, project: Project
) -> web.Response:
    listeners = services[protected_refs.END_OF_PROTECTION_LISTENERS]
    async with services.database.transaction() as transaction:
        await protected_refs.unprotect_branch(transaction, project, params.name, actor.author, listeners)
    return no_content()


@attrs.frozen(kw_only=True)
class ListProtectedTags(Paginated):
    id: str


@attrs.frozen(kw_only=True)
class ProtectTag(OneProtected):
    create_access_level: Level | None = None
    allowed_to_create: list[AllowedTo] | None = None

    def __attrs_post_init__(self) -> None:
        check_allowed("allowed_to_create", self.create_access_level, self.allowed_to_create or [])

    @property
    def level(self) -> int:
        """The level of the new rule: Maintainers if none was sent."""
        level = level_of(self.create_access_level, self.allowed_to_create)
        return Role.MAINTAINER if level is None else level


@routes.get("/projects/{id}/protected_tags", access=project(Role.MAINTAINER), answers="200 [ProtectedTag]")
async def list_protected_tags(
    request: web.Request, services: Services, params: ListProtectedTags, project: Project
) -> web.Response:
    page = requested_page(params, protected_ref_queries.TAG_LISTING, default_sort="asc")
    rows = await protected_ref_queries.list_protected_tags(services.database, page, project.id)
    return await paginated(request, page, rows)


@routes.get(
    "/projects/{id}/protected_tags/{name}", access=project(Role.MAINTAINER), answers="200 ProtectedTag"
)
async def show_protected_tag(services: Services, params: OneProtected, project: Project) -> web.Response:
    """Show the rule for tags that is called `name`, with its wildcards."""
    return json_text(
        await protected_ref_queries.show_protected_tag(services.database, project.id, params.name)
    )


@routes.post(
    "/projects/{id}/protected_tags",
    access=project(Role.MAINTAINER),
    revokes="project:{id}",
    answers="201 ProtectedTag",
)
async def protect_tag(services: Services, actor: Actor, params: ProtectTag, project: Project) -> web.Response:
    """Protect the tags that match `name`, in which `*` stands for any text. They need not exist yet."""
    async with services.database.transaction() as transaction:
        await protected_refs.protect_tag(transaction, project, params.name, params.level, actor.author)
        entity = await protected_ref_queries.show_protected_tag(transaction, project.id, params.name)
    return json_text(entity, status=201)


@routes.delete(
    "/projects/{id}/protected_tags/{name}",
    access=project(Role.MAINTAINER),
    revokes="project:{id}",
    answers="204",
)
async def unprotect_tag(
    services: Services, actor: Actor, params: OneProtected, project: Project
) -> web.Response:
    async with services.database.transaction() as transaction:
        await protected_refs.unprotect_tag(transaction, project, params.name, actor.author)
    return no_content()
