"""Status check services of a project: endpoints 12-15, and reading one (beyond GitLab)."""

import attrs
from aiohttp import web

from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.status_checks import service_queries, services
from api_server.status_checks.service_queries import Service
from api_server.status_checks.services import Configuration
from api_server.web import context
from api_server.web.answers import json_text, no_content
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import UNSET, CommaList, Unset
from api_server.web.routes import Feature, Role, Routes

routes = Routes()

STATUS_CHECKS = Feature("External status checks", tier="ultimate")
PATH = "/projects/{id}/external_status_checks"
ONE = f"{PATH}/{{check_id}}"


@attrs.frozen(kw_only=True)
class ListServices(Paginated):
    id: str


@attrs.frozen(kw_only=True)
class CreateService:
    id: str
    name: str
    external_url: str
    shared_secret: str | None = attrs.field(default=None, repr=False)
    protected_branch_ids: CommaList[int] | None = None


@attrs.frozen(kw_only=True)
class ServiceId:
    id: str
    check_id: int


@attrs.frozen(kw_only=True)
class UpdateService(ServiceId):
    name: str | Unset | None = UNSET
    external_url: str | Unset | None = UNSET
    shared_secret: str | Unset | None = attrs.field(default=UNSET, repr=False)
    protected_branch_ids: CommaList[int] | Unset | None = UNSET
    #: False resumes a check that was paused because its receiver failed.
    paused: bool | None = None


@routes.get(PATH, access=project(Role.MAINTAINER), feature=STATUS_CHECKS)
async def list_services(request: web.Request, wanted: ListServices, found: Project) -> web.Response:
    """Endpoint 12. The services that are asked of every merge request."""
    page = wanted_page(wanted, service_queries.LISTING, default_sort="asc")
    listed = await service_queries.list_services(context.database(request), page, found.id)
    return await paginated(request, page, listed)


@routes.post(PATH, access=project(Role.MAINTAINER), feature=STATUS_CHECKS)
async def create_service(request: web.Request, wanted: CreateService, found: Project) -> web.Response:
    """Endpoint 13. Its secret is never shown."""
    url = wanted.external_url.strip()
    new = Configuration(
        name=wanted.name,
        external_url=url,
        secret=_secret(wanted.shared_secret),
        branch_ids=tuple(wanted.protected_branch_ids or ()),
        blocked=await services.why_blocked(request, url),
    )
    async with context.database(request).transaction() as transaction:
        made = await services.create(request, transaction, found, new)
        shown = await service_queries.show(transaction, found.id, made)
    return json_text(shown, status=201)


@routes.get(ONE, access=project(Role.MAINTAINER), feature=STATUS_CHECKS)
async def show_service(request: web.Request, wanted: ServiceId, found: Project) -> web.Response:
    """One service; beyond GitLab."""
    return json_text(await service_queries.show(context.database(request), found.id, wanted.check_id))


@routes.put(ONE, access=project(Role.MAINTAINER), feature=STATUS_CHECKS)
async def update_service(request: web.Request, wanted: UpdateService, found: Project) -> web.Response:
    """Endpoint 14. What is not sent stays as it is."""
    url = "" if wanted.external_url is UNSET else (wanted.external_url or "").strip()
    blocked = await services.why_blocked(request, url)
    async with context.database(request).transaction() as transaction:
        before = await service_queries.lock(transaction, found.id, wanted.check_id)
        after = _changed(request, before, wanted, blocked)
        await services.update(request, transaction, found, before, after, resumes=wanted.paused is False)
        shown = await service_queries.show(transaction, found.id, before.id)
    return json_text(shown)


@routes.delete(ONE, access=project(Role.MAINTAINER), feature=STATUS_CHECKS)
async def delete_service(request: web.Request, wanted: ServiceId, found: Project) -> web.Response:
    """Endpoint 15. Its results and deliveries go with it."""
    async with context.database(request).transaction() as transaction:
        before = await service_queries.lock(transaction, found.id, wanted.check_id)
        await services.delete(request, transaction, found, before)
    return no_content()


def _changed(
    request: web.Request, before: Service, wanted: UpdateService, blocked: str | None
) -> Configuration:
    url = before.external_url if wanted.external_url is UNSET else (wanted.external_url or "").strip()
    return Configuration(
        name=before.name if wanted.name is UNSET else wanted.name or "",
        external_url=url,
        secret=services.secret_of(request, before)
        if wanted.shared_secret is UNSET
        else _secret(wanted.shared_secret),
        branch_ids=None if wanted.protected_branch_ids is UNSET else tuple(wanted.protected_branch_ids or ()),
        blocked=blocked if url != before.external_url else None,
    )


def _secret(sent: str | None) -> str | None:
    """Blank means none."""
    return sent if sent and sent.strip() else None
