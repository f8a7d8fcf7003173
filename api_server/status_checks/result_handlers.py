"""Results of status checks for a merge request: endpoints 16-18, and the history of answers (beyond GitLab)."""

from typing import Literal

import attrs
from aiohttp import web

from api_server.merge_requests import queries as merge_requests
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.status_checks import result_queries, results, service_queries
from api_server.status_checks.service_handlers import STATUS_CHECKS
from api_server.web import context
from api_server.web.answers import json_text, json_value
from api_server.web.errors import forbidden
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import Description, Url
from api_server.web.routes import Role, Routes

routes = Routes()

PATH = "/projects/{id}/merge_requests/{merge_request_iid}"
#: Milliseconds after which asking again is worth it.
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


@routes.get(f"{PATH}/status_checks", access=project(opens="repository"), feature=STATUS_CHECKS)
async def list_checks(request: web.Request, wanted: ListChecks, found: Project) -> web.Response:
    """Endpoint 16. The services' results for the head; their URLs are for Developers."""
    page = wanted_page(wanted, result_queries.CHECKS, default_sort="asc")
    _require_reader(found)
    database = context.database(request)
    iid, shows_url = wanted.merge_request_iid, found.role >= Role.DEVELOPER
    listed = await result_queries.list_checks(database, page, found.id, iid, shows_url=shows_url)
    if listed.last_id is None:
        await merge_requests.find(database, found.id, iid)  # which refuses where there is none
    response = await paginated(request, page, listed)
    response.headers["Poll-Interval"] = POLL_INTERVAL
    return response


@routes.post(
    f"{PATH}/status_check_responses",
    access=project(Role.DEVELOPER, opens="repository", changes=True),
    feature=STATUS_CHECKS,
)
async def respond(request: web.Request, wanted: Respond, found: Project) -> web.Response:
    """Endpoint 17. A service says how the head does; `pending` where it does not say."""
    response = results.Response(
        sha=wanted.sha,
        status=wanted.status,
        description=wanted.description,
        target_url=wanted.target_url,
    )
    async with context.database(request).transaction() as transaction:
        merge_request = await merge_requests.find(transaction, found.id, wanted.merge_request_iid)
        check = await service_queries.hold(transaction, found.id, wanted.external_status_check_id)
        made = await results.respond(request, transaction, check, merge_request, response)
        shown = await merge_requests.show(transaction, merge_request.id, found)
        service = await service_queries.show(transaction, found.id, check.id)
    body = f'{{"id":{made},"merge_request":{shown},"external_status_check":{service}}}'
    return json_text(body, status=201)


@routes.post(
    f"{PATH}/status_checks/{{external_status_check_id}}/retry",
    access=project(Role.DEVELOPER, opens="repository", changes=True),
    feature=STATUS_CHECKS,
)
async def retry(request: web.Request, wanted: CheckOfMergeRequest, found: Project) -> web.Response:
    """Endpoint 18. Asks a service whose check has failed once more."""
    async with context.database(request).transaction() as transaction:
        merge_request = await merge_requests.find(transaction, found.id, wanted.merge_request_iid)
        check = await service_queries.hold(transaction, found.id, wanted.external_status_check_id)
        await results.retry(request, transaction, check, merge_request)
    return json_value({"message": "202 Accepted"}, status=202)


@routes.get(
    f"{PATH}/status_checks/{{external_status_check_id}}/responses",
    access=project(opens="repository"),
    feature=STATUS_CHECKS,
)
async def list_responses(request: web.Request, wanted: ListResponses, found: Project) -> web.Response:
    """Every answer, for every head, newest first."""
    page = wanted_page(wanted, result_queries.RESPONSES)
    _require_reader(found)
    database = context.database(request)
    merge_request = await merge_requests.find(database, found.id, wanted.merge_request_iid)
    check = await service_queries.find(database, found.id, wanted.external_status_check_id)
    listed = await result_queries.list_responses(database, page, merge_request.id, check.id)
    return await paginated(request, page, listed)


def _require_reader(found: Project) -> None:
    """Reporters, and everybody inside where the project is internal."""
    if found.role < Role.REPORTER and found.visibility != "internal":
        raise forbidden()
