"""`/admin/ci/variables`: the variables of the instance (supporting resource)."""

import attrs
from aiohttp import web

from api_server.ci.variables import changes, queries
from api_server.ci.variables.answers import answer, only, opened, updated
from api_server.ci.variables.handlers import VariableType
from api_server.ci.variables.rules import Values
from api_server.state.audit_trail import INSTANCE
from api_server.web import context
from api_server.web.answers import no_content
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import UNSET, Unset
from api_server.web.routes import ADMINISTRATOR, Routes, author

routes = Routes()


@attrs.frozen(kw_only=True)
class OneVariable:
    key: str


@attrs.frozen(kw_only=True)
class CreateVariable:
    key: str = attrs.field(metadata={"present": True})
    value: str = attrs.field(repr=False)
    variable_type: VariableType = "env_var"
    protected: bool = False
    masked: bool = False
    raw: bool = False
    description: str | None = None


@attrs.frozen(kw_only=True)
class UpdateVariable(OneVariable):
    value: str | None = attrs.field(default=None, repr=False)
    variable_type: VariableType | None = None
    protected: bool | None = None
    masked: bool | None = None
    raw: bool | None = None
    description: str | Unset | None = UNSET


@routes.get("/admin/ci/variables", access=ADMINISTRATOR)
async def list_variables(request: web.Request, wanted: Paginated) -> web.Response:
    """With their values."""
    page = wanted_page(wanted, queries.INSTANCE_LISTING, default_sort="asc")
    listed = await queries.list_variables(context.database(request), page, INSTANCE)
    return await paginated(request, page, opened(request, listed))


@routes.get("/admin/ci/variables/{key}", access=ADMINISTRATOR)
async def show_variable(request: web.Request, wanted: OneVariable) -> web.Response:
    database = context.database(request)
    variable = only(await queries.find(database, INSTANCE, wanted.key, None), "InstanceVariable")
    return await answer(request, database, INSTANCE, variable.id)


@routes.post("/admin/ci/variables", access=ADMINISTRATOR)
async def create_variable(request: web.Request, wanted: CreateVariable) -> web.Response:
    """All projects' jobs get it from now on."""
    values = Values(**attrs.asdict(wanted))
    vault, most = context.vault(request), context.settings(request).instance_variables_limit
    async with context.database(request).transaction() as transaction:
        made = await changes.create(transaction, vault, INSTANCE, values, author(request), most)
        return await answer(request, transaction, INSTANCE, made, status=201)


@routes.put("/admin/ci/variables/{key}", access=ADMINISTRATOR)
async def update_variable(request: web.Request, wanted: UpdateVariable) -> web.Response:
    vault = context.vault(request)
    async with context.database(request).transaction() as transaction:
        before = only(await queries.lock(transaction, INSTANCE, wanted.key, None), "InstanceVariable")
        values = updated(before, vault, attrs.asdict(wanted))
        await changes.update(transaction, vault, INSTANCE, before, values, author(request))
        return await answer(request, transaction, INSTANCE, before.id)


@routes.delete("/admin/ci/variables/{key}", access=ADMINISTRATOR)
async def delete_variable(request: web.Request, wanted: OneVariable) -> web.Response:
    async with context.database(request).transaction() as transaction:
        variable = only(await queries.lock(transaction, INSTANCE, wanted.key, None), "InstanceVariable")
        await changes.delete(transaction, INSTANCE, variable, author(request))
    return no_content()
