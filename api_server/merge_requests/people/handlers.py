"""`/merge_requests/:iid/reviewers` and `/participants` (supporting resource)."""

import attrs
from aiohttp import web

from api_server.merge_requests import queries as merge_requests
from api_server.merge_requests.handlers import ONE
from api_server.merge_requests.people import queries
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.routes import Routes

routes = Routes()


@attrs.frozen(kw_only=True)
class ListPeople(Paginated):
    id: str
    merge_request_iid: int


@routes.get(f"{ONE}/reviewers", access=project(opens="repository"))
async def list_reviewers(request: web.Request, wanted: ListPeople, found: Project) -> web.Response:
    """Each with what she has said of it: `approved` or `unreviewed`."""
    page = wanted_page(wanted, queries.REVIEWERS, default_sort="asc")
    database = context.database(request)
    merge_request = await merge_requests.find(database, found.id, wanted.merge_request_iid)
    return await paginated(request, page, await queries.list_reviewers(database, page, merge_request.id))


@routes.get(f"{ONE}/participants", access=project(opens="repository"))
async def list_participants(request: web.Request, wanted: ListPeople, found: Project) -> web.Response:
    """The author, assignees, reviewers, and who has written notes."""
    page = wanted_page(wanted, queries.PARTICIPANTS, default_sort="asc")
    database = context.database(request)
    merge_request = await merge_requests.find(database, found.id, wanted.merge_request_iid)
    return await paginated(request, page, await queries.list_participants(database, page, merge_request.id))
