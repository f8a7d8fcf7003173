"""Lists over the whole instance: users, tokens, runners, projects, mirrors and deliveries."""

from typing import Literal

import attrs
import orjson
from aiohttp import web

from api_server.accounts import token_handlers, user_handlers, user_queries
from api_server.ci.runners import handlers as runner_routes
from api_server.mirrors import handlers as mirror_routes
from api_server.namespaces import project_queries
from api_server.pages import page
from api_server.pages.admin import lists, queries
from api_server.pages.admin.lists import EMPTY_IS_ALL, Filters, act
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
async def list_users(request: web.Request, who: Visitor, wanted: ListUsers) -> web.Response:
    """Everybody, the newest first; found by name, username or address."""
    listed = await user_queries.list_users(
        context.database(request),
        wanted.page,
        for_administrator=True,
        username=None,
        search=wanted.search,
        active=wanted.state == "active",
        blocked=wanted.state == "blocked",
        bots=None if wanted.kind is None else wanted.kind == "bots",
    )
    return lists.answer(request, who, "users.html", wanted, listed)


act(pages, "/admin/users/{id}/block", user_handlers.block_user, "The user is blocked.")
act(pages, "/admin/users/{id}/unblock", user_handlers.unblock_user, "The user is unblocked.")


@pages.get("/admin/tokens", access=ADMINISTRATOR)
async def list_tokens(request: web.Request, who: Visitor, wanted: ListTokens) -> web.Response:
    """Personal access tokens, the newest first."""
    listed = await queries.list_tokens(
        context.database(request), wanted.page, username=wanted.username, state=wanted.state
    )
    return lists.answer(request, who, "tokens.html", wanted, listed)


act(
    pages,
    "/admin/tokens/{id}/revoke",
    token_handlers.revoke_token,
    "The token is revoked: it opens nothing any more.",
)


RunnerType = Literal["instance_type", "group_type", "project_type"]


@attrs.frozen(kw_only=True)
class ListRunners(Filters):
    status: queries.RunnerStatus | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    type: RunnerType | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    state: Literal["paused", "active"] | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@pages.get("/admin/runners", access=ADMINISTRATOR)
async def list_runners(request: web.Request, who: Visitor, wanted: ListRunners) -> web.Response:
    listed = await queries.list_runners(
        context.database(request),
        wanted.page,
        status=wanted.status,
        runner_type=wanted.type,
        paused=None if wanted.state is None else wanted.state == "paused",
    )
    return lists.answer(request, who, "runners.html", wanted, listed)


act(pages, "/admin/runners/{id}/pause", runner_routes.update_runner, "The runner gets no more jobs.")
act(pages, "/admin/runners/{id}/resume", runner_routes.update_runner, "The runner gets jobs again.")
act(pages, "/admin/runners/{id}/remove", runner_routes.delete_runner, "The runner is removed.")


@attrs.frozen(kw_only=True)
class ListProjects(Filters):
    search: str | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    visibility: Literal["private", "internal", "public"] | None = attrs.field(
        default=None, metadata=EMPTY_IS_ALL
    )
    archived: bool | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@pages.get("/admin/projects", access=ADMINISTRATOR)
async def list_projects(request: web.Request, who: Visitor, wanted: ListProjects) -> web.Response:
    """The newest first; found by name or path."""
    listed = await project_queries.list_projects(
        context.database(request),
        wanted.page,
        viewer_id=caller(request).user_id,
        sees_all=True,
        visibility=wanted.visibility,
        archived=wanted.archived,
        search=wanted.search,
    )
    return lists.answer(request, who, "projects.html", wanted, listed)


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
async def list_mirrors(request: web.Request, who: Visitor, wanted: ListMirrors) -> web.Response:
    listed = await queries.list_mirrors(context.database(request), wanted.page, wanted.state)
    return lists.answer(request, who, "mirrors.html", wanted, listed)


act(
    pages,
    "/admin/mirrors/{mirror_id}/sync",
    mirror_routes.sync_mirror,
    "The mirror runs soon: at once, or five minutes after its last run.",
)


@pages.get("/admin/deliveries", access=ADMINISTRATOR)
async def list_deliveries(request: web.Request, who: Visitor, wanted: ListDeliveries) -> web.Response:
    """To the services of external status checks."""
    listed = await queries.list_deliveries(context.database(request), wanted.page, wanted.state)
    return lists.answer(request, who, "deliveries.html", wanted, listed)


@pages.get("/admin/deliveries/{delivery_id}", access=ADMINISTRATOR)
async def show_delivery(request: web.Request, who: Visitor, wanted: OneDelivery) -> web.Response:
    """With every attempt."""
    database = context.database(request)
    place = await queries.place_of_delivery(database, wanted.delivery_id)
    shown = orjson.loads(await delivery_queries.show(database, place.check_id, wanted.delivery_id))
    return page.answer(
        request, who, "admin/delivery.html", delivery=shown, place=place, back=page.address(request)
    )


act(
    pages,
    "/admin/deliveries/{delivery_id}/redeliver",
    handlers.redeliver,
    "The delivery is sent again.",
)
act(
    pages,
    "/admin/status_checks/{check_id}/resume",
    handlers.update_service,
    "The check is resumed: deliveries to it go out again.",
)
