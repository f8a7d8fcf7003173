"""`/admin/audit_events`: who has done what; as a file too, and whether the trail is as it was written."""

import asyncio
import csv
import datetime
import io
from collections.abc import AsyncIterator
from typing import Any, Literal

import attrs
import orjson
from aiohttp import web

from api_server.audit import chain, queries
from api_server.audit.handlers import INSTANCE_AUDIT_EVENTS
from api_server.pages.admin import lists
from api_server.pages.admin.lists import EMPTY_IS_ALL, Filters, Refused, attempted
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.state.audit_event_types import EntityType
from api_server.state.database import Database
from api_server.state.listing import Page
from api_server.web import context, routes
from api_server.web.routes import ADMINISTRATOR

pages = Pages()

#: Events that are read at a time for a file.
_BATCH = 500
#: Seconds after which a long trail is better verified by the command.
_TIMEOUT = 60
_COLUMNS = (
    "id", "created_at", "event_name", "author_id", "author_name", "entity_type", "entity_id", "entity_path",
    "target_type", "target_id", "target_details", "ip_address", "custom_message",
)  # fmt: skip


@attrs.frozen(kw_only=True)
class EventFilters(Filters):
    """Times are inclusive, in UTC."""

    author_username: str | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    entity_type: EntityType | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    entity_id: int | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    event_type: str | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    created_after: datetime.datetime | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    created_before: datetime.datetime | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)

    @property
    def conditions(self) -> dict[str, Any]:
        return {name: value for name, value in attrs.asdict(self).items() if name in _CONDITIONS}


_CONDITIONS = {field.name for field in attrs.fields(EventFilters)} - {"after"}


@attrs.frozen(kw_only=True)
class Export(EventFilters):
    format: Literal["ndjson", "csv"] = "ndjson"


@pages.get("/admin/audit_events", access=ADMINISTRATOR)
async def list_events(request: web.Request, visitor: Visitor, params: EventFilters) -> web.Response:
    _require_tier(request)
    listed = await queries.list_events(context.services(request).database, params.page, params.conditions)
    query = {name: value for name, value in request.query.items() if value.strip() and name != "after"}
    return lists.answer(request, visitor, "audit_events.html", params, listed, query=query)


@pages.get("/admin/audit_events/export", access=ADMINISTRATOR)
async def export(request: web.Request, params: Export) -> web.StreamResponse:
    """All events that the filters let through, newest first, as the API shows them; read as they are sent."""
    _require_tier(request)
    media_type = "text/csv" if params.format == "csv" else "application/x-ndjson"
    response = web.StreamResponse(
        headers={
            "Content-Type": f"{media_type}; charset=utf-8",
            "Content-Disposition": f'attachment; filename="audit-events.{params.format}"',
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
    )
    await response.prepare(request)
    lines = _csv if params.format == "csv" else _ndjson
    async for text in lines(_batches(context.services(request).database, params)):
        await response.write(text.encode())
    return response


def _require_tier(request: web.Request) -> None:
    """As the API's lists do. Raises 403."""
    routes.require_license(INSTANCE_AUDIT_EVENTS, context.services(request).settings)


async def _batches(database: Database, params: EventFilters) -> AsyncIterator[list[dict[str, Any]]]:
    after = None
    while True:
        listed = await queries.list_events(
            database, Page(_BATCH, after=after, counted=False), params.conditions
        )
        yield orjson.loads(listed.body)
        if not listed.more:
            return
        after = listed.last_id


async def _ndjson(batches: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[str]:
    async for batch in batches:
        yield "".join(f"{orjson.dumps(event).decode()}\n" for event in batch)


async def _csv(batches: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[str]:
    yield _row(_COLUMNS)
    async for batch in batches:
        yield "".join(
            _row([_cell({**event["details"], **event}.get(name)) for name in _COLUMNS]) for event in batch
        )


def _row(cells: Any) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()


def _cell(value: Any) -> str:
    """Spreadsheets compute what begins like a formula; users give such names."""
    text = "" if value is None else str(value)
    return (
        f"'{text}"
        if text[:1] in ("=", "+", "-", "@", "\t", "\r") and not text.lstrip("-").isdigit()
        else text
    )


@pages.post("/admin/audit_events/verify", access=ADMINISTRATOR)
async def verify(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    """Reads the whole chain, and compares it with the heads that are kept in the object store."""
    return await attempted(request, visitor, form, _verified(request))


async def _verified(request: web.Request) -> str:
    services = context.services(request)
    kept = await chain.kept_heads(services.objects)
    try:
        async with asyncio.timeout(_TIMEOUT):
            # its snapshot begins before any other statement, and for as long as it reads no rights are held
            verdict = await chain.verify(services.shared.database, kept)
    except TimeoutError:
        raise Refused(
            "The trail is too long to be verified while a page waits: run `forgelet audit verify`."
        ) from None
    if verdict.problem:
        raise Refused(f"The audit trail is broken: {verdict.problem}.")
    agreeing = f"as the {len(kept)} kept heads say" if kept else "compared with no kept head"
    return (
        f"The audit trail is sound: {verdict.head.position} events, {agreeing}. Its head is {verdict.head}."
    )
