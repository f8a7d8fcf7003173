"""Status check services of a project (endpoints 12 to 15), their results for a merge request (16 to 18), and their
deliveries."""

from typing import Literal

import attrs
from aiohttp import web

from api_server.merge_requests import queries as merge_requests
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state import audit_trail
from api_server.status_checks import checks, delivery_queries, queries
from api_server.status_checks.checks import Configuration
from api_server.status_checks.queries import Service
from api_server.web.answers import json_text, json_value, no_content, require_unmodified
from api_server.web.auth import Actor
from api_server.web.errors import forbidden
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import UNSET, CommaList, Description, Unset, Url
from api_server.web.routes import License, Role, Routes

routes = Routes()

STATUS_CHECKS = License("External status checks", tier="ultimate")
SERVICES = "/projects/{id}/external_status_checks"
SERVICE = f"{SERVICES}/{{check_id}}"


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
    #: If False, a check that was paused because of its failing receiver is resumed.
    paused: bool | None = None


@routes.get(
    SERVICES, access=project(Role.MAINTAINER), license=STATUS_CHECKS, answers="200 [ExternalStatusCheck]"
)
async def list_services(
    request: web.Request, services: Services, params: ListServices, project: Project
) -> web.Response:
    """Endpoint 12. List the project's status check services."""
    page = requested_page(params, queries.LISTING, default_sort="asc")
    rows = await queries.list_services(services.database, page, project.id)
    return await paginated(request, page, rows)


@routes.post(
    SERVICES, access=project(Role.MAINTAINER), license=STATUS_CHECKS, answers="201 ExternalStatusCheck"
)
async def create_service(
    services: Services, actor: Actor, params: CreateService, project: Project
) -> web.Response:
    """Endpoint 13. Create a status check service. Its secret is never shown."""
    url = params.external_url.strip()
    new = Configuration(
        name=params.name,
        external_url=url,
        secret=_secret(params.shared_secret),
        branch_ids=tuple(params.protected_branch_ids or ()),
        blocked=await checks.why_blocked(services, url),
    )
    async with services.database.transaction() as transaction:
        check_id = await checks.create(services, actor, transaction, project, new)
        entity = await queries.show(transaction, project.id, check_id, shows_secrets=True)
    return json_text(entity, status=201)


@routes.get(
    SERVICE, access=project(Role.MAINTAINER), license=STATUS_CHECKS, answers="200 ExternalStatusCheck"
)
async def show_service(services: Services, params: ServiceId, project: Project) -> web.Response:
    """Show a status check service. GitLab does not have this operation."""
    entity = await queries.show(services.database, project.id, params.check_id, shows_secrets=True)
    return json_text(entity)


@routes.put(
    SERVICE, access=project(Role.MAINTAINER), license=STATUS_CHECKS, answers="200 ExternalStatusCheck"
)
async def update_service(
    services: Services, actor: Actor, params: UpdateService, project: Project
) -> web.Response:
    """Endpoint 14. Update a status check service. Attributes that are not sent are kept."""
    url = "" if params.external_url is UNSET else (params.external_url or "").strip()
    blocked = await checks.why_blocked(services, url)
    async with services.database.transaction() as transaction:
        before = await queries.lock(transaction, project.id, params.check_id)
        after = _changed(services, before, params, blocked)
        await checks.update(
            services, actor, transaction, project, before, after, resumes=params.paused is False
        )
        entity = await queries.show(transaction, project.id, before.id, shows_secrets=True)
    return json_text(entity)


@routes.delete(SERVICE, access=project(Role.MAINTAINER), license=STATUS_CHECKS, answers="204")
async def delete_service(
    request: web.Request, services: Services, actor: Actor, params: ServiceId, project: Project
) -> web.Response:
    """Endpoint 15. Delete a status check service with its results and deliveries."""
    async with services.database.transaction() as transaction:
        before = await queries.lock(transaction, project.id, params.check_id)
        require_unmodified(request, before.updated_at)
        await checks.delete(actor, transaction, project, before)
    return no_content()


def _changed(
    services: Services, before: Service, params: UpdateService, blocked: str | None
) -> Configuration:
    url = before.external_url if params.external_url is UNSET else (params.external_url or "").strip()
    return Configuration(
        name=before.name if params.name is UNSET else params.name or "",
        external_url=url,
        secret=checks.secret_of(services, before)
        if params.shared_secret is UNSET
        else _secret(params.shared_secret),
        branch_ids=None if params.protected_branch_ids is UNSET else tuple(params.protected_branch_ids or ()),
        blocked=blocked if url != before.external_url else None,
    )


def _secret(text: str | None) -> str | None:
    """Return the secret, or None if it is blank."""
    return text if text and text.strip() else None


CHECKS = "/projects/{id}/merge_requests/{merge_request_iid}"
#: Milliseconds after which clients should ask again.
POLL_INTERVAL = "10000"


@attrs.frozen(kw_only=True)
class ListChecks(Paginated):
    id: str
    merge_request_iid: int


@attrs.frozen(kw_only=True)
class Respond:
    id: str
    merge_request_iid: int
    sha: str = attrs.field(metadata={"present": True})
    external_status_check_id: int
    status: Literal["pending", "passed", "failed"] = "pending"
    description: Description | None = None
    target_url: Url | None = None


@attrs.frozen(kw_only=True)
class CheckOfMergeRequest:
    id: str
    merge_request_iid: int
    external_status_check_id: int


@attrs.frozen(kw_only=True)
class ListResponses(ListChecks):
    external_status_check_id: int


@routes.get(
    f"{CHECKS}/status_checks",
    access=project(feature="repository"),
    license=STATUS_CHECKS,
    answers="200 [MergeRequestStatusCheck]",
)
async def list_checks(
    request: web.Request, services: Services, params: ListChecks, project: Project
) -> web.Response:
    """Endpoint 16. List the services' results for the head of a merge request, with their URLs for Developers."""
    page = requested_page(params, queries.CHECKS, default_sort="asc")
    _require_reader(project)
    database = services.database
    iid, shows_url = params.merge_request_iid, project.role >= Role.DEVELOPER
    rows = await queries.list_checks(database, page, project.id, iid, shows_url=shows_url)
    if rows.last_id is None:
        await merge_requests.find(database, project.id, iid)  # raises if there is no such merge request
    response = await paginated(request, page, rows)
    response.headers["Poll-Interval"] = POLL_INTERVAL
    return response


@routes.post(
    f"{CHECKS}/status_check_responses",
    access=project(Role.DEVELOPER, feature="repository", changes=True),
    license=STATUS_CHECKS,
    answers="201 StatusCheckResponse",
)
async def respond(services: Services, actor: Actor, params: Respond, project: Project) -> web.Response:
    """Endpoint 17. Record a service's result for the head of a merge request; without a status it is `pending`."""
    response = checks.Response(
        sha=params.sha,
        status=params.status,
        description=params.description,
        target_url=params.target_url,
    )
    async with services.database.transaction() as transaction:
        merge_request = await merge_requests.find(transaction, project.id, params.merge_request_iid)
        check = await queries.hold(transaction, project.id, params.external_status_check_id)
        response_id = await checks.record_response(actor, transaction, check, merge_request, response)
        entity = await merge_requests.show(transaction, merge_request.id, project)
        maintains = project.role >= Role.MAINTAINER
        service = await queries.show(transaction, project.id, check.id, shows_secrets=maintains)
    body = f'{{"id":{response_id},"merge_request":{entity},"external_status_check":{service}}}'
    return json_text(body, status=201)


@routes.post(
    f"{CHECKS}/status_checks/{{external_status_check_id}}/retry",
    access=project(Role.DEVELOPER, feature="repository", changes=True),
    license=STATUS_CHECKS,
    answers="202 Message",
)
async def retry(
    services: Services, actor: Actor, params: CheckOfMergeRequest, project: Project
) -> web.Response:
    """Endpoint 18. Send a merge request again to a service whose result is `failed`."""
    async with services.database.transaction() as transaction:
        merge_request = await merge_requests.find(transaction, project.id, params.merge_request_iid)
        check = await queries.hold(transaction, project.id, params.external_status_check_id)
        await checks.retry_check(actor, transaction, check, merge_request)
    return json_value({"message": "202 Accepted"}, status=202)


@routes.get(
    f"{CHECKS}/status_checks/{{external_status_check_id}}/responses",
    access=project(feature="repository"),
    license=STATUS_CHECKS,
    answers="200 [StatusCheckAnswer]",
)
async def list_responses(
    request: web.Request, services: Services, params: ListResponses, project: Project
) -> web.Response:
    """List all answers of a service about a merge request, for every head, newest first."""
    page = requested_page(params, queries.RESPONSES)
    _require_reader(project)
    database = services.database
    merge_request = await merge_requests.find(database, project.id, params.merge_request_iid)
    check = await queries.find(database, project.id, params.external_status_check_id)
    rows = await queries.list_responses(database, page, merge_request.id, check.id)
    return await paginated(request, page, rows)


def _require_reader(project: Project) -> None:
    """Raise 403 below the Reporter role, unless the project is internal."""
    if project.role < Role.REPORTER and project.visibility != "internal":
        raise forbidden()


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


@routes.get(
    f"{SERVICE}/deliveries",
    access=project(Role.MAINTAINER),
    license=STATUS_CHECKS,
    answers="200 [StatusCheckDelivery]",
)
async def list_deliveries(
    request: web.Request, services: Services, params: ListDeliveries, project: Project
) -> web.Response:
    """List the deliveries to a service, newest first. GitLab does not have this operation."""
    page = requested_page(params, delivery_queries.LISTING)
    check = await queries.find(services.database, project.id, params.check_id)
    rows = await delivery_queries.list_deliveries(
        services.database, page, check_id=check.id, status=params.status
    )
    return await paginated(request, page, rows)


@routes.get(
    f"{SERVICE}/deliveries/{{delivery_id}}",
    access=project(Role.MAINTAINER),
    license=STATUS_CHECKS,
    answers="200 StatusCheckDeliveryDetail",
)
async def show_delivery(services: Services, params: DeliveryId, project: Project) -> web.Response:
    """Show a delivery with its payload and every attempt. GitLab does not have this operation."""
    check = await queries.find(services.database, project.id, params.check_id)
    entity = await delivery_queries.show(services.database, check.id, params.delivery_id)
    return json_text(entity)


@routes.post(
    f"{SERVICE}/deliveries/{{delivery_id}}/redeliver",
    access=project(Role.MAINTAINER),
    license=STATUS_CHECKS,
    answers="202 StatusCheckDeliveryDetail",
)
async def redeliver(services: Services, actor: Actor, params: DeliveryId, project: Project) -> web.Response:
    """Send the same message again at once, even to a paused check. GitLab does not have this operation."""
    async with services.database.transaction() as transaction:
        check = await queries.hold(transaction, project.id, params.check_id)
        await delivery_queries.redeliver(transaction, check.id, params.delivery_id)
        await audit_trail.record(
            transaction,
            "status_check_delivery_redelivered",
            actor.author,
            project.entity.target(check.id, check.name),
            delivery_id=params.delivery_id,
        )
        entity = await delivery_queries.show(transaction, check.id, params.delivery_id)
    return json_text(entity, status=202)
