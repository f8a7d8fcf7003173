"""`/projects/:id/variables`, `/groups/:id/variables` and `/admin/ci/variables` (supporting resources)."""

import base64
from typing import Any, Literal

import attrs
import orjson
from aiohttp import web

from api_server.ci.variables import queries, variables
from api_server.ci.variables.queries import StoredVariable
from api_server.ci.variables.variables import Values
from api_server.namespaces.access import group, project
from api_server.namespaces.resources import Group, Project
from api_server.services import Services
from api_server.state.audit_trail import INSTANCE, Entity
from api_server.state.database import Executor
from api_server.state.listing import ListPage
from api_server.state.secrets import Vault
from api_server.web.answers import json_text, no_content
from api_server.web.auth import Actor
from api_server.web.errors import conflict, not_found
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import UNSET, Unset
from api_server.web.routes import ADMINISTRATOR, Role, Routes


def _only(variables: list[StoredVariable], kind: str = "Variable") -> StoredVariable:
    """Return the only variable. Raise 404 if there is none and 409 if there are several."""
    if not variables:
        raise not_found(kind)
    if len(variables) > 1:
        raise conflict(
            "There are multiple variables with provided parameters. Please use 'filter[environment_scope]'"
        )
    return variables[0]


def _updated_values(before: StoredVariable, vault: Vault, fields: dict[str, Any]) -> Values:
    """Return the variable after the update: null leaves a value unchanged, except for the description."""
    values = {field.name: getattr(before, field.name) for field in attrs.fields(Values)}
    values["value"] = vault.decrypt(before.value)
    changes = {
        name: value
        for name, value in fields.items()
        if value is not UNSET and (value is not None or name == "description")
    }
    return Values(**values | changes)


async def _answer(
    services: Services, database: Executor, owner: Entity, variable_id: int, status: int = 200
) -> web.Response:
    """Answer the variable as the API shows it."""
    entity = orjson.loads(await queries.show(database, owner, variable_id))
    with_value = _with_value(services.vault, entity)
    return json_text(orjson.dumps(with_value).decode(), status=status)


def _page_with_values(services: Services, rows: ListPage) -> ListPage:
    """Return a page of variables with their values decrypted."""
    entities = [_with_value(services.vault, entity) for entity in orjson.loads(rows.body)]
    return attrs.evolve(rows, body=orjson.dumps(entities).decode())


def _with_value(vault: Vault, entity: dict[str, Any]) -> dict[str, Any]:
    """Return the entity with its value decrypted."""
    sealed = entity["value"]
    return entity | {"value": None if sealed is None else vault.decrypt(base64.b64decode(sealed))}


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


@routes.get("/projects/{id}/variables", access=project(Role.MAINTAINER), answers="200 [Variable]")
@routes.get("/groups/{id}/variables", access=group(Role.OWNER), answers="200 [Variable]")
async def list_variables(
    request: web.Request, services: Services, params: ListVariables, resource: Project | Group
) -> web.Response:
    """List the variables with their values, except for those of hidden ones."""
    page = requested_page(params, queries.LISTING, default_sort="asc")
    rows = await queries.list_variables(services.database, page, resource.entity)
    return await paginated(request, page, _page_with_values(services, rows))


@routes.get("/projects/{id}/variables/{key}", access=project(Role.MAINTAINER), answers="200 Variable")
@routes.get("/groups/{id}/variables/{key}", access=group(Role.OWNER), answers="200 Variable")
async def show_variable(services: Services, params: OneVariable, resource: Project | Group) -> web.Response:
    database = services.database
    variable = _only(await queries.find(database, resource.entity, params.key, params.scope))
    return await _answer(services, database, resource.entity, variable.id)


@routes.post("/projects/{id}/variables", access=project(Role.MAINTAINER), answers="201 Variable")
@routes.post("/groups/{id}/variables", access=group(Role.OWNER), answers="201 Variable")
async def create_variable(
    services: Services, actor: Actor, params: CreateVariable, resource: Project | Group
) -> web.Response:
    """Create a variable. With `masked_and_hidden`, nobody can read the value again."""
    fields = attrs.asdict(params, filter=lambda field, _: field.name not in ("id", "masked_and_hidden"))
    values = Values(
        **fields | {"masked": params.masked or params.masked_and_hidden, "hidden": params.masked_and_hidden}
    )
    async with services.database.transaction() as transaction:
        variable_id = await variables.create(
            transaction,
            services.vault,
            resource.entity,
            values,
            actor.author,
            services.settings.variables_limit,
        )
        return await _answer(services, transaction, resource.entity, variable_id, status=201)


@routes.put("/projects/{id}/variables/{key}", access=project(Role.MAINTAINER), answers="200 Variable")
@routes.put("/groups/{id}/variables/{key}", access=group(Role.OWNER), answers="200 Variable")
async def update_variable(
    services: Services, actor: Actor, params: UpdateVariable, resource: Project | Group
) -> web.Response:
    """Update a variable. Running jobs keep the value that they were given."""
    vault = services.vault
    async with services.database.transaction() as transaction:
        before = _only(await queries.lock(transaction, resource.entity, params.key, params.scope))
        values = _updated_values(before, vault, _fields(params))
        await variables.update(transaction, vault, resource.entity, before, values, actor.author)
        return await _answer(services, transaction, resource.entity, before.id)


@routes.delete("/projects/{id}/variables/{key}", access=project(Role.MAINTAINER), answers="204")
@routes.delete("/groups/{id}/variables/{key}", access=group(Role.OWNER), answers="204")
async def delete_variable(
    services: Services, actor: Actor, params: OneVariable, resource: Project | Group
) -> web.Response:
    async with services.database.transaction() as transaction:
        variable = _only(await queries.lock(transaction, resource.entity, params.key, params.scope))
        await variables.delete(transaction, resource.entity, variable, actor.author)
    return no_content()


def _fields(params: UpdateVariable) -> dict[str, Any]:
    return attrs.asdict(params, filter=lambda field, _: field.name not in ("id", "key", "filter"))


@attrs.frozen(kw_only=True)
class OneInstanceVariable:
    key: str


@attrs.frozen(kw_only=True)
class CreateInstanceVariable:
    key: str = attrs.field(metadata={"present": True})
    value: str = attrs.field(repr=False)
    variable_type: VariableType = "env_var"
    protected: bool = False
    masked: bool = False
    raw: bool = False
    description: str | None = None


@attrs.frozen(kw_only=True)
class UpdateInstanceVariable(OneInstanceVariable):
    value: str | None = attrs.field(default=None, repr=False)
    variable_type: VariableType | None = None
    protected: bool | None = None
    masked: bool | None = None
    raw: bool | None = None
    description: str | Unset | None = UNSET


@routes.get("/admin/ci/variables", access=ADMINISTRATOR, answers="200 [InstanceVariable]")
async def list_instance_variables(
    request: web.Request, services: Services, params: Paginated
) -> web.Response:
    """List the instance's variables with their values."""
    page = requested_page(params, queries.INSTANCE_LISTING, default_sort="asc")
    rows = await queries.list_variables(services.database, page, INSTANCE)
    return await paginated(request, page, _page_with_values(services, rows))


@routes.get("/admin/ci/variables/{key}", access=ADMINISTRATOR, answers="200 InstanceVariable")
async def show_instance_variable(services: Services, params: OneInstanceVariable) -> web.Response:
    database = services.database
    variable = _only(await queries.find(database, INSTANCE, params.key, None), "InstanceVariable")
    return await _answer(services, database, INSTANCE, variable.id)


@routes.post("/admin/ci/variables", access=ADMINISTRATOR, answers="201 InstanceVariable")
async def create_instance_variable(
    services: Services, actor: Actor, params: CreateInstanceVariable
) -> web.Response:
    """Create a variable for the jobs of all projects."""
    values = Values(**attrs.asdict(params))
    vault, limit = services.vault, services.settings.instance_variables_limit
    async with services.database.transaction() as transaction:
        variable_id = await variables.create(transaction, vault, INSTANCE, values, actor.author, limit)
        return await _answer(services, transaction, INSTANCE, variable_id, status=201)


@routes.put("/admin/ci/variables/{key}", access=ADMINISTRATOR, answers="200 InstanceVariable")
async def update_instance_variable(
    services: Services, actor: Actor, params: UpdateInstanceVariable
) -> web.Response:
    vault = services.vault
    async with services.database.transaction() as transaction:
        before = _only(await queries.lock(transaction, INSTANCE, params.key, None), "InstanceVariable")
        values = _updated_values(before, vault, attrs.asdict(params))
        await variables.update(transaction, vault, INSTANCE, before, values, actor.author)
        return await _answer(services, transaction, INSTANCE, before.id)


@routes.delete("/admin/ci/variables/{key}", access=ADMINISTRATOR, answers="204")
async def delete_instance_variable(
    services: Services, actor: Actor, params: OneInstanceVariable
) -> web.Response:
    async with services.database.transaction() as transaction:
        variable = _only(await queries.lock(transaction, INSTANCE, params.key, None), "InstanceVariable")
        await variables.delete(transaction, INSTANCE, variable, actor.author)
    return no_content()
