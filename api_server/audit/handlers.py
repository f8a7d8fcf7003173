"""Reading of audit events: endpoints 25 to 30 (decision D7)."""

import datetime
from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.audit import queries
from api_server.namespaces.access import group, project
from api_server.namespaces.resources import Group, Project
from api_server.services import Services
from api_server.state.audit_event_types import EntityType
from api_server.state.audit_trail import Entity
from api_server.web import context
from api_server.web.answers import json_text
from api_server.web.auth import Actor
from api_server.web.errors import bad_parameters
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.routes import ADMINISTRATOR, License, Role, Routes

routes = Routes()

AUDIT_EVENTS = License("audit events", "premium")
INSTANCE_AUDIT_EVENTS = License("instance audit events", "premium", ("self_managed", "dedicated"))


def _direction(sort: str | None) -> str | None:
    """Return the direction; `created_asc` and `created_desc` are other names of `asc` and `desc`."""
    return sort and sort.removeprefix("created_")


@attrs.frozen(kw_only=True)
class ListEvents(Paginated):
    """Filters of events. Times are inclusive. GitLab does not have the filters by type, author and target."""

    created_after: datetime.datetime | None = None
    created_before: datetime.datetime | None = None
    event_type: str | None = None
    author_id: int | None = None
    target_type: str | None = None
    target_id: int | None = None
    sort: str | None = attrs.field(
        default=None,
        converter=_direction,
        metadata={"takes": Literal["asc", "desc", "created_asc", "created_desc"] | None},
    )


@attrs.frozen(kw_only=True)
class ListInstanceEvents(ListEvents):
    entity_type: EntityType | None = None
    entity_id: int | None = None
    author_username: str | None = None
    entity_username: str | None = None


@attrs.frozen(kw_only=True)
class ListEventsOf(ListEvents):
    id: str


@attrs.frozen(kw_only=True)
class EventId:
    id: int


@attrs.frozen(kw_only=True)
class EventIdOf:
    id: str
    audit_event_id: int


@routes.get("/audit_events", access=ADMINISTRATOR, license=INSTANCE_AUDIT_EVENTS, answers="200 [AuditEvent]")
async def list_instance_events(request: web.Request, params: ListInstanceEvents) -> web.Response:
    """Endpoint 25. List the events of all entities, newest first."""
    if params.entity_id is not None and params.entity_type is None:
        raise bad_parameters("entity_type is missing")
    return await _listed(request, params, {})


@routes.get(
    "/audit_events/{id}", access=ADMINISTRATOR, license=INSTANCE_AUDIT_EVENTS, answers="200 AuditEvent"
)
async def show_instance_event(services: Services, params: EventId) -> web.Response:
    """Endpoint 26. Show an event of any entity."""
    return json_text(await queries.show_event(services.database, params.id))


@routes.get(
    "/groups/{id}/audit_events",
    access=group(Role.DEVELOPER),
    license=AUDIT_EVENTS,
    answers="200 [AuditEvent]",
)
async def list_group_events(
    request: web.Request, actor: Actor, params: ListEventsOf, group: Group
) -> web.Response:
    """Endpoint 27. List the events of exactly this group: all for Owners, their own for Developers and Maintainers."""
    return await _listed(request, params, scope_of(actor, group))


@routes.get(
    "/groups/{id}/audit_events/{audit_event_id}",
    access=group(Role.OWNER),
    license=AUDIT_EVENTS,
    answers="200 AuditEvent",
)
async def show_group_event(services: Services, params: EventIdOf, group: Group) -> web.Response:
    """Endpoint 28. Show an event of exactly this group."""
    return await _shown_of(services, params.audit_event_id, group.entity)


@routes.get(
    "/projects/{id}/audit_events",
    access=project(Role.DEVELOPER),
    license=AUDIT_EVENTS,
    answers="200 [AuditEvent]",
)
async def list_project_events(
    request: web.Request, actor: Actor, params: ListEventsOf, project: Project
) -> web.Response:
    """Endpoint 29. List the events of the project: all for Maintainers, their own for Developers."""
    return await _listed(request, params, scope_of(actor, project))


@routes.get(
    "/projects/{id}/audit_events/{audit_event_id}",
    access=project(Role.MAINTAINER),
    license=AUDIT_EVENTS,
    answers="200 AuditEvent",
)
async def show_project_event(services: Services, params: EventIdOf, project: Project) -> web.Response:
    """Endpoint 30. Show an event of the project."""
    return await _shown_of(services, params.audit_event_id, project.entity)


def scope_of(actor: Actor, resource: Project | Group) -> dict[str, Any]:
    """Return the filters that limit a list to the events of a project or group that the caller may see."""
    sees_all = resource.role >= (Role.OWNER if isinstance(resource, Group) else Role.MAINTAINER)
    return {
        "entity_type": resource.entity.type,
        "entity_id": resource.entity.id,
        "own_author_id": None if sees_all else actor.user_id,
    }


async def _listed(request: web.Request, params: ListEvents, scope: dict[str, Any]) -> web.Response:
    page = requested_page(params, queries.listing())
    filters = attrs.asdict(params, filter=lambda field, _: field.name not in _NO_FILTERS)
    list_page = await queries.list_events(context.services(request).database, page, filters | scope)
    return await paginated(request, page, list_page)


_NO_FILTERS = {field.name for field in attrs.fields(Paginated)} | {"id"}


async def _shown_of(services: Services, event_id: int, entity: Entity) -> web.Response:
    return json_text(await queries.show_event_of(services.database, event_id, entity.type, entity.id))
