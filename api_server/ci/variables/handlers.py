"""`/projects/:id/variables` and `/groups/:id/variables` (supporting resources)."""

from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.ci.variables import changes, queries
from api_server.ci.variables.answers import answer, only, opened, updated
from api_server.ci.variables.rules import Values
from api_server.namespaces.access import group, project
from api_server.namespaces.resources import Group, Project
from api_server.web import context
from api_server.web.access import Role
from api_server.web.answers import no_content
from api_server.web.authorship import author
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import UNSET, Unset
from api_server.web.routes import Routes

routes = Routes()

VariableType = Literal["env_var", "file"]


@attrs.frozen(kw_only=True)
class ListVariables(Paginated):
    id: str


@attrs.frozen(kw_only=True)
class Filter:
    environment_scope: str | None = None


@attrs.frozen(kw_only=True)
class OneVariable:
    id: str
    key: str
    filter: Filter | None = None

    @property
    def scope(self) -> str | None:
        return self.filter.environment_scope if self.filter else None


@attrs.frozen(kw_only=True)
class CreateVariable:
    id: str
    key: str = attrs.field(metadata={"present": True})
    value: str = attrs.field(repr=False)
    variable_type: VariableType = "env_var"
    protected: bool = False
    masked: bool = False
    masked_and_hidden: bool = False
    raw: bool = False
    environment_scope: str = "*"
    description: str | None = None


@attrs.frozen(kw_only=True)
class UpdateVariable(OneVariable):
    value: str | None = attrs.field(default=None, repr=False)
    variable_type: VariableType | None = None
    protected: bool | None = None
    masked: bool | None = None
    raw: bool | None = None
    environment_scope: str | None = None
    description: str | Unset | None = UNSET


@routes.get("/projects/{id}/variables", access=project(Role.MAINTAINER))
@routes.get("/groups/{id}/variables", access=group(Role.OWNER))
async def list_variables(request: web.Request, wanted: ListVariables, found: Project | Group) -> web.Response:
    """With their values, those of hidden ones aside."""
    page = wanted_page(wanted, queries.LISTING, default_sort="asc")
    listed = await queries.list_variables(context.database(request), page, found.entity)
    return await paginated(request, page, opened(request, listed))


@routes.get("/projects/{id}/variables/{key}", access=project(Role.MAINTAINER))
@routes.get("/groups/{id}/variables/{key}", access=group(Role.OWNER))
async def show_variable(request: web.Request, wanted: OneVariable, found: Project | Group) -> web.Response:
    database = context.database(request)
    variable = only(await queries.find(database, found.entity, wanted.key, wanted.scope))
    return await answer(request, database, found.entity, variable.id)


@routes.post("/projects/{id}/variables", access=project(Role.MAINTAINER))
@routes.post("/groups/{id}/variables", access=group(Role.OWNER))
async def create_variable(
    request: web.Request, wanted: CreateVariable, found: Project | Group
) -> web.Response:
    """`masked_and_hidden`: nobody reads the value again."""
    given = attrs.asdict(wanted, filter=lambda field, _: field.name not in ("id", "masked_and_hidden"))
    values = Values(
        **given | {"masked": wanted.masked or wanted.masked_and_hidden, "hidden": wanted.masked_and_hidden}
    )
    async with context.database(request).transaction() as transaction:
        made = await changes.create(
            transaction,
            context.vault(request),
            found.entity,
            values,
            author(request),
            context.settings(request).variables_limit,
        )
        return await answer(request, transaction, found.entity, made, status=201)


@routes.put("/projects/{id}/variables/{key}", access=project(Role.MAINTAINER))
@routes.put("/groups/{id}/variables/{key}", access=group(Role.OWNER))
async def update_variable(
    request: web.Request, wanted: UpdateVariable, found: Project | Group
) -> web.Response:
    """Jobs that run already keep what they were given."""
    vault = context.vault(request)
    async with context.database(request).transaction() as transaction:
        before = only(await queries.lock(transaction, found.entity, wanted.key, wanted.scope))
        values = updated(before, vault, _sent(wanted))
        await changes.update(transaction, vault, found.entity, before, values, author(request))
        return await answer(request, transaction, found.entity, before.id)


@routes.delete("/projects/{id}/variables/{key}", access=project(Role.MAINTAINER))
@routes.delete("/groups/{id}/variables/{key}", access=group(Role.OWNER))
async def delete_variable(request: web.Request, wanted: OneVariable, found: Project | Group) -> web.Response:
    async with context.database(request).transaction() as transaction:
        variable = only(await queries.lock(transaction, found.entity, wanted.key, wanted.scope))
        await changes.delete(transaction, found.entity, variable, author(request))
    return no_content()


def _sent(wanted: UpdateVariable) -> dict[str, Any]:
    return attrs.asdict(wanted, filter=lambda field, _: field.name not in ("id", "key", "filter"))
