"""`/admin/audit_events`: the audit events of the whole instance, and the verification of the trail."""

import asyncio

import attrs
from aiohttp import web

from api_server.audit import chain
from api_server.audit.handlers import INSTANCE_AUDIT_EVENTS
from api_server.pages.lists import EMPTY_IS_ALL, Refused, attempted
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.pages.settings import audit_events
from api_server.pages.settings.audit_events import EventFilters, Format
from api_server.state.audit_event_types import EntityType
from api_server.web import context, routes
from api_server.web.routes import ADMINISTRATOR

pages = Pages()

#: Time limit of a verification, in seconds. For longer trails there is a command.
_TIMEOUT = 60


@attrs.frozen(kw_only=True)
class InstanceFilters(EventFilters):
    entity_type: EntityType | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    entity_id: int | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@attrs.frozen(kw_only=True)
class Export(InstanceFilters):
    format: Format = "ndjson"


@pages.get("/admin/audit_events", access=ADMINISTRATOR)
async def list_events(request: web.Request, visitor: Visitor, params: InstanceFilters) -> web.Response:
    routes.require_license(INSTANCE_AUDIT_EVENTS, context.services(request).settings)
    return await audit_events.show_list(
        request, visitor, "admin/audit_events.html", params, {}, sees_all=True
    )


@pages.get("/admin/audit_events/export", access=ADMINISTRATOR)
async def export(request: web.Request, params: Export) -> web.StreamResponse:
    routes.require_license(INSTANCE_AUDIT_EVENTS, context.services(request).settings)
    return await audit_events.export(request, params.conditions, params.format)


@pages.post("/admin/audit_events/verify", access=ADMINISTRATOR)
async def verify(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    """Verify the whole chain, and compare it with the heads that are kept in the object store."""
    return await attempted(request, visitor, form, _verified(request))


async def _verified(request: web.Request) -> str:
    services = context.services(request)
    saved_heads = await chain.kept_heads(services.objects)
    try:
        async with asyncio.timeout(_TIMEOUT):
            # Not the request's own database: that would check and lock the caller's rights in the transaction. But the
            # snapshot has to be its first statement, and the locks would last for the whole verification.
            result = await chain.verify(services.shared.database, saved_heads)
    except TimeoutError:
        raise Refused(
            "The audit trail is too long to verify in the browser. Run `forgelet audit verify`."
        ) from None
    if result.problem:
        raise Refused(f"The audit trail is broken: {result.problem}.")
    events, agreement = result.head.position, chain.agreement(saved_heads)
    return f"Audit trail intact: {events} events, {agreement}. Current head: {result.head}."
