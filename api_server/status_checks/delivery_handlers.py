"""Deliveries of a status check: what was sent, what came back, and sending it again (beyond GitLab)."""

from typing import Literal

import attrs
from aiohttp import web

from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.status_checks import delivery_queries, service_queries
from api_server.status_checks.service_audit import ServiceAudit
from api_server.status_checks.service_handlers import ONE, STATUS_CHECKS
from api_server.web import context
from api_server.web.answers import json_text
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.routes import Role, Routes, author

routes = Routes()


@attrs.frozen(kw_only=True)
class ListDeliveries(Paginated):
    id: str
    check_id: int
    status: Literal["queued", "delivered", "failed"] | None = None


@attrs.frozen(kw_only=True)
class DeliveryId:
    id: str
    check_id: int
    delivery_id: int


@routes.get(f"{ONE}/deliveries", access=project(Role.MAINTAINER), feature=STATUS_CHECKS)
async def list_deliveries(request: web.Request, wanted: ListDeliveries, found: Project) -> web.Response:
    """What was sent to the service, newest first; beyond GitLab."""
    page = wanted_page(wanted, delivery_queries.LISTING)
    check = await service_queries.find(context.database(request), found.id, wanted.check_id)
    listed = await delivery_queries.list_deliveries(
        context.database(request), page, check_id=check.id, status=wanted.status
    )
    return await paginated(request, page, listed)


@routes.get(f"{ONE}/deliveries/{{delivery_id}}", access=project(Role.MAINTAINER), feature=STATUS_CHECKS)
async def show_delivery(request: web.Request, wanted: DeliveryId, found: Project) -> web.Response:
    """One delivery with its payload and every attempt; beyond GitLab."""
    check = await service_queries.find(context.database(request), found.id, wanted.check_id)
    shown = await delivery_queries.show(context.database(request), check.id, wanted.delivery_id)
    return json_text(shown)


@routes.post(
    f"{ONE}/deliveries/{{delivery_id}}/redeliver", access=project(Role.MAINTAINER), feature=STATUS_CHECKS
)
async def redeliver(request: web.Request, wanted: DeliveryId, found: Project) -> web.Response:
    """The same message at once, also to a paused check; beyond GitLab."""
    async with context.database(request).transaction() as transaction:
        check = await service_queries.hold(transaction, found.id, wanted.check_id)
        await delivery_queries.redeliver(transaction, check.id, wanted.delivery_id)
        await ServiceAudit(author(request), transaction, found, check.id, check.name).record(
            "status_check_delivery_redelivered",
            f"Redelivered to {check.name} status check",
            delivery_id=wanted.delivery_id,
        )
        shown = await delivery_queries.show(transaction, check.id, wanted.delivery_id)
    return json_text(shown, status=202)
