"""Lists over the whole instance: users, tokens, runners, projects, mirrors and deliveries."""

from typing import Literal

import attrs
import orjson
from aiohttp import web

from api_server.accounts import token_handlers, user_handlers, user_queries
from api_server.ci.runners import handlers as runner_routes
from api_server.mirrors import handlers as mirror_routes
from api_server.namespaces import project_queries
from api_server.pages import lists, page
from api_server.pages.admin import queries
from api_server.pages.lists import EMPTY_IS_ALL, Filters, act
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.status_checks import delivery_queries, handlers
from api_server.web import context
from api_server.web.routes import ADMINISTRATOR, caller

pages = Pages()


@attrs.frozen(kw_only=True)
class ListUsers(Filters):
    search: str | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    state: Literal["active", "blocked"] | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    kind: Literal["people", "bots"] | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@attrs.frozen(kw_only=True)
class ListTokens(Filters):
    username: str | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    state: queries.TokenState | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@pages.get("/admin/users", access=ADMINISTRATOR)
async def list_users(request: web.Request, visitor: Visitor, params: ListUsers) -> web.Response:
    """List all users, the newest first. They can be searched by name, user name or email address."""
    users = await user_queries.list_users(
        context.services(request).database,
        params.page,
        for_administrator=True,
        search=params.search,
        active=params.state == "active",
        blocked=params.state == "blocked",
        bots=None if params.kind is None else params.kind == "bots",
    )
    return lists.answer(request, visitor, "admin/users.html", params, users)


act(pages, "/admin/users/{id}/block", user_handlers.block_user, "User blocked.")
act(pages, "/admin/users/{id}/unblock", user_handlers.unblock_user, "User unblocked.")


@pages.get("/admin/tokens", access=ADMINISTRATOR)
async def list_tokens(request: web.Request, visitor: Visitor, params: ListTokens) -> web.Response:
    """List personal access tokens, the newest first."""
    tokens = await queries.list_tokens(
        context.services(request).database, params.page, username=params.username, state=params.state
    )
    return lists.answer(request, visitor, "admin/tokens.html", params, tokens)


act(
    pages,
    "/admin/tokens/{id}/revoke",
    token_handlers.revoke_token,
    "Token revoked.",
)


RunnerType = Literal["instance_type", "group_type", "project_type"]


@attrs.frozen(kw_only=True)
class ListRunners(Filters):
    status: queries.RunnerStatus | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    type: RunnerType | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    state: Literal["paused", "active"] | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@pages.get("/admin/runners", access=ADMINISTRATOR)
async def list_runners(request: web.Request, visitor: Visitor, params: ListRunners) -> web.Response:
    runners = await queries.list_runners(
        context.services(request).database,
        params.page,
        status=params.status,
        runner_type=params.type,
        paused=None if params.state is None else params.state == "paused",
    )
    return lists.answer(request, visitor, "admin/runners.html", params, runners)


act(pages, "/admin/runners/{id}/pause", runner_routes.update_runner, "Runner paused.")
act(pages, "/admin/runners/{id}/resume", runner_routes.update_runner, "Runner resumed.")
act(pages, "/admin/runners/{id}/remove", runner_routes.delete_runner, "Runner removed.")


@attrs.frozen(kw_only=True)
class ListProjects(Filters):
    search: str | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    visibility: Literal["private", "internal", "public"] | None = attrs.field(
        default=None, metadata=EMPTY_IS_ALL
    )
    archived: bool | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@pages.get("/admin/projects", access=ADMINISTRATOR)
async def list_projects(request: web.Request, visitor: Visitor, params: ListProjects) -> web.Response:
    """List all projects, the newest first. They can be searched by name or path."""
    projects = await project_queries.list_projects(
        context.services(request).database,
        params.page,
        viewer_id=caller(request).user_id,
        sees_all=True,
        visibility=params.visibility,
        archived=params.archived,
        search=params.search,
    )
    return lists.answer(request, visitor, "admin/projects.html", params, projects)


@attrs.frozen(kw_only=True)
class ListMirrors(Filters):
    state: Literal["failing"] | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@attrs.frozen(kw_only=True)
class ListDeliveries(Filters):
    state: queries.DeliveryState | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@attrs.frozen(kw_only=True)
class OneDelivery:
    delivery_id: int


@pages.get("/admin/mirrors", access=ADMINISTRATOR)
async def list_mirrors(request: web.Request, visitor: Visitor, params: ListMirrors) -> web.Response:
    mirrors = await queries.list_mirrors(context.services(request).database, params.page, params.state)
    return lists.answer(request, visitor, "admin/mirrors.html", params, mirrors)


act(
    pages,
    "/admin/mirrors/{mirror_id}/sync",
    mirror_routes.sync_mirror,
    "Mirror update queued. It starts now, or five minutes after the last attempt.",
)


@pages.get("/admin/deliveries", access=ADMINISTRATOR)
async def list_deliveries(request: web.Request, visitor: Visitor, params: ListDeliveries) -> web.Response:
    """List the deliveries to the services of external status checks."""
    deliveries = await queries.list_deliveries(context.services(request).database, params.page, params.state)
    return lists.answer(request, visitor, "admin/deliveries.html", params, deliveries)


@pages.get("/admin/deliveries/{delivery_id}", access=ADMINISTRATOR)
async def show_delivery(request: web.Request, visitor: Visitor, params: OneDelivery) -> web.Response:
    """Show a delivery with all its attempts."""
    database = context.services(request).database
    check = await queries.check_of_delivery(database, params.delivery_id)
    delivery = orjson.loads(await delivery_queries.show(database, check.check_id, params.delivery_id))
    return page.answer(
        request, visitor, "admin/delivery.html", delivery=delivery, check=check, back=page.address(request)
    )


act(
    pages,
    "/admin/deliveries/{delivery_id}/redeliver",
    handlers.redeliver,
    "Redelivery queued.",
)
act(
    pages,
    "/admin/status_checks/{check_id}/resume",
    handlers.update_service,
    "Status check resumed. Deliveries are sent again.",
)
