"""Status check services of a project: endpoints 12-15, and reading one (beyond GitLab)."""

import attrs
from aiohttp import web

from api_server.namespaces.projects.access import find_project, project
from api_server.state.database import Row
from api_server.status_checks import queries, services
from api_server.status_checks.services import Service
from api_server.web import context
from api_server.web.access import Role
from api_server.web.answers import json_text, no_content
from api_server.web.errors import ApiError, record_not_found
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import UNSET, CommaList, Unset, parse
from api_server.web.routes import Routes
from api_server.web.tiers import Feature

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
async def list_services(request: web.Request) -> web.Response:
    """12: GET /projects/:id/external_status_checks."""
    wanted = await parse(request, ListServices)
    page = wanted_page(wanted, queries.SERVICES, default_sort="asc")
    found = await find_project(request, wanted.id)
    listed = await queries.read(queries.SERVICES, context.database(request), page, project_id=found.id)
    return await paginated(request, page, listed)


@routes.post(PATH, access=project(Role.MAINTAINER), feature=STATUS_CHECKS)
async def create_service(request: web.Request) -> web.Response:
    """13: POST /projects/:id/external_status_checks."""
    wanted = await parse(request, CreateService)
    found = await find_project(request, wanted.id)
    url = wanted.external_url.strip()
    new = Service(
        name=wanted.name,
        external_url=url,
        secret=_secret(wanted.shared_secret),
        branch_ids=tuple(wanted.protected_branch_ids or ()),
        blocked=await services.why_blocked(request, url),
    )
    async with context.database(request).transaction() as transaction:
        made = await services.create(request, transaction, found, new)
        shown = await queries.show_service(transaction, made)
    return json_text(shown, status=201)


@routes.get(ONE, access=project(Role.MAINTAINER), feature=STATUS_CHECKS)
async def show_service(request: web.Request) -> web.Response:
    """GET /projects/:id/external_status_checks/:check_id."""
    wanted = await parse(request, ServiceId)
    found = await find_project(request, wanted.id)
    check = await find_service(request, found.id, wanted.check_id)
    return json_text(await queries.show_service(context.database(request), check.id))


@routes.put(ONE, access=project(Role.MAINTAINER), feature=STATUS_CHECKS)
async def update_service(request: web.Request) -> web.Response:
    """14: PUT /projects/:id/external_status_checks/:check_id. What is not sent stays as it is."""
    wanted = await parse(request, UpdateService)
    found = await find_project(request, wanted.id)
    url = wanted.external_url.strip() if isinstance(wanted.external_url, str) else ""
    blocked = await services.why_blocked(request, url) if url else None
    async with context.database(request).transaction() as transaction:
        before = await queries.lock_service(transaction, found.id, wanted.check_id)
        if before is None:
            raise record_not_found()
        await services.update(request, transaction, found, before, _changed(request, before, wanted, blocked))
        if wanted.paused is False and before.paused_at is not None:
            await services.resume_by_hand(request, transaction, found, before)
        shown = await queries.show_service(transaction, before.id)
    return json_text(shown)


@routes.delete(ONE, access=project(Role.MAINTAINER), feature=STATUS_CHECKS)
async def delete_service(request: web.Request) -> web.Response:
    """15: DELETE /projects/:id/external_status_checks/:check_id; 412 where it changed since `If-Unmodified-Since`."""
    wanted = await parse(request, ServiceId)
    found = await find_project(request, wanted.id)
    async with context.database(request).transaction() as transaction:
        before = await queries.lock_service(transaction, found.id, wanted.check_id)
        if before is None:
            raise record_not_found()
        since = request.if_unmodified_since
        if since is not None and before.updated_at.replace(microsecond=0) > since:
            raise ApiError(412, {"message": "412 Precondition Failed"})
        await services.delete(request, transaction, found, before)
    return no_content()


async def find_service(request: web.Request, project_id: int, check_id: int) -> Row:
    """A project's check. Raises 404, also for another project's."""
    found = await queries.find_service(context.database(request), project_id, check_id)
    if found is None:
        raise record_not_found()
    return found


def _changed(request: web.Request, before: Row, wanted: UpdateService, blocked: str | None) -> Service:
    sent_url = before.external_url if wanted.external_url is UNSET else wanted.external_url or ""
    return Service(
        name=before.name if wanted.name is UNSET else wanted.name or "",
        external_url=sent_url.strip(),
        secret=services.secret_of(request, before)
        if wanted.shared_secret is UNSET
        else _secret(wanted.shared_secret),
        branch_ids=None if wanted.protected_branch_ids is UNSET else tuple(wanted.protected_branch_ids or ()),
        blocked=blocked if sent_url.strip() != before.external_url else None,
    )


def _secret(sent: str | None) -> str | None:
    """Blank means none."""
    return sent if sent and sent.strip() else None
