"""`/<project>/-/audit_events` and `/groups/<group>/-/audit_events`: audit events as a list and as files.

The admin area shows those of the whole instance by the same functions.
"""

import csv
import datetime
import io
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import attrs
import orjson
from aiohttp import web

from api_server.accounts.path_rules import FULL_PATH
from api_server.audit import queries
from api_server.audit.handlers import AUDIT_EVENTS, scope_of
from api_server.namespaces.access import group, project
from api_server.namespaces.resources import Group, Project
from api_server.pages import lists
from api_server.pages.lists import EMPTY_IS_ALL, Filters
from api_server.pages.queries import usernames
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.pages.settings import frame
from api_server.state.audit_event_types import EVENT_TYPES
from api_server.state.database import Database
from api_server.state.listing import Page
from api_server.web import context, routes
from api_server.web.routes import Role, caller

pages = Pages()

#: Number of events that are read at a time for a file.
_BATCH = 500
_COLUMNS = (
    "id", "created_at", "event_name", "author_id", "author_name", "entity_type", "entity_id", "entity_path",
    "target_type", "target_id", "target_details", "ip_address", "custom_message",
)  # fmt: skip

#: Filters of the statement. None matches everything.
Conditions = Mapping[str, Any]
Format = Literal["ndjson", "csv"]


@attrs.frozen(kw_only=True)
class EventFilters(Filters):
    """The filters of a list of audit events. Times are inclusive and in UTC."""

    author_username: str | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    event_type: str | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    created_after: datetime.datetime | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    created_before: datetime.datetime | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)

    @property
    def conditions(self) -> Conditions:
        return {name: value for name, value in attrs.asdict(self).items() if name not in ("after", "format")}


@attrs.frozen(kw_only=True)
class Export(EventFilters):
    format: Format = "ndjson"


_OF_PROJECT = project(Role.DEVELOPER)
_OF_GROUP = group(Role.DEVELOPER)


@pages.get(f"/groups/{{group:{FULL_PATH}}}/-/audit_events", access=_OF_GROUP)
@pages.get("/{project}/-/audit_events", access=_OF_PROJECT)
async def list_events(
    request: web.Request, visitor: Visitor, params: EventFilters, resource: Project | Group
) -> web.Response:
    """List the audit events: for Maintainers of the project or Owners of the group all, for others their own ones."""
    scope = _scope(request, resource)
    return await show_list(
        request,
        visitor,
        "settings/audit_events.html",
        params,
        scope,
        sees_all=scope["own_author_id"] is None,
        **frame.values(request, resource),
    )


@pages.get(f"/groups/{{group:{FULL_PATH}}}/-/audit_events/export", access=_OF_GROUP)
@pages.get("/{project}/-/audit_events/export", access=_OF_PROJECT)
async def export_events(
    request: web.Request, params: Export, resource: Project | Group
) -> web.StreamResponse:
    return await export(request, {**params.conditions, **_scope(request, resource)}, params.format)


def _scope(request: web.Request, resource: Project | Group) -> dict[str, Any]:
    """Return the conditions of events that the visitor may see, as in the API. Raise 403 if the license has no audit
    events."""
    routes.require_license(AUDIT_EVENTS, context.services(request).settings)
    return scope_of(caller(request), resource)


async def show_list(
    request: web.Request,
    visitor: Visitor,
    template: str,
    params: EventFilters,
    scope: Conditions,
    **values: Any,
) -> web.Response:
    """Return the page with the events of `scope` that match the filters, the newest first."""
    database = context.services(request).database
    events = await queries.list_events(database, params.page, {**params.conditions, **scope})
    authors = {event["author_id"] for event in orjson.loads(events.body)}
    belongs_to = scope.get("entity_type")
    names = [name for name, kind in EVENT_TYPES.items() if belongs_to is None or belongs_to in kind.scopes]
    return lists.answer(
        request,
        visitor,
        template,
        params,
        events,
        list_path=request.path,
        query={name: value for name, value in request.query.items() if value.strip() and name != "after"},
        event_types=sorted(names),
        usernames={user.id: user.username for user in await usernames(database, sorted(authors))},
        **values,
    )


async def export(request: web.Request, conditions: Conditions, form: Format) -> web.StreamResponse:
    """Return a file of all events that match `conditions`, the newest first, as the API shows them. They are read while
    they are sent."""
    media_type = "text/csv" if form == "csv" else "application/x-ndjson"
    response = web.StreamResponse(
        headers={
            "Content-Type": f"{media_type}; charset=utf-8",
            "Content-Disposition": f'attachment; filename="audit-events.{form}"',
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
    )
    await response.prepare(request)
    lines = _csv if form == "csv" else _ndjson
    async for text in lines(_batches(context.services(request).database, conditions)):
        await response.write(text.encode())
    return response


async def _batches(database: Database, conditions: Conditions) -> AsyncIterator[list[dict[str, Any]]]:
    after = None
    while True:
        events = await queries.list_events(database, Page(_BATCH, after=after, counted=False), conditions)
        yield orjson.loads(events.body)
        if not events.more:
            return
        after = events.last_id


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
    """Return the text of a cell. One that begins like a formula gets an apostrophe, because spreadsheets would compute
    it and users can choose such names."""
    text = "" if value is None else str(value)
    return (
        f"'{text}"
        if text[:1] in ("=", "+", "-", "@", "\t", "\r") and not text.lstrip("-").isdigit()
        else text
    )
