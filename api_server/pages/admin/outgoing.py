"""`/admin/mirrors` and `/admin/deliveries`: what the service sends out, and what has come of it."""

from typing import Literal

import attrs
import orjson
from aiohttp import web

from api_server.mirrors import handlers as mirror_routes
from api_server.pages import page
from api_server.pages.admin import list_queries, lists
from api_server.pages.admin.acting import act
from api_server.pages.admin.lists import EMPTY_IS_ALL, Filters
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.status_checks import delivery_handlers, delivery_queries, service_handlers
from api_server.web import context
from api_server.web.routes import ADMINISTRATOR

pages = Pages()


@attrs.frozen(kw_only=True)
class ListMirrors(Filters):
    state: Literal["failing"] | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@attrs.frozen(kw_only=True)
class ListDeliveries(Filters):
    state: list_queries.DeliveryState | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@attrs.frozen(kw_only=True)
class OneDelivery:
    delivery_id: int


@pages.get("/admin/mirrors", access=ADMINISTRATOR)
async def list_mirrors(request: web.Request, who: Visitor, wanted: ListMirrors) -> web.Response:
    listed = await list_queries.list_mirrors(context.database(request), wanted.page, wanted.state)
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
    listed = await list_queries.list_deliveries(context.database(request), wanted.page, wanted.state)
    return lists.answer(request, who, "deliveries.html", wanted, listed)


@pages.get("/admin/deliveries/{delivery_id}", access=ADMINISTRATOR)
async def show_delivery(request: web.Request, who: Visitor, wanted: OneDelivery) -> web.Response:
    """With every attempt."""
    database = context.database(request)
    place = await list_queries.place_of_delivery(database, wanted.delivery_id)
    shown = orjson.loads(await delivery_queries.show(database, place.check_id, wanted.delivery_id))
    return page.answer(
        request, who, "admin/delivery.html", delivery=shown, place=place, back=page.address(request)
    )


act(
    pages,
    "/admin/deliveries/{delivery_id}/redeliver",
    delivery_handlers.redeliver,
    "The delivery is sent again.",
)
act(
    pages,
    "/admin/status_checks/{check_id}/resume",
    service_handlers.update_service,
    "The check is resumed: deliveries to it go out again.",
)
