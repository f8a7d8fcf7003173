"""`/admin/background_tasks` and `/admin/edges`: queued and failed tasks, and the configured edges."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

import aiohttp
import attrs
from aiohttp import web

from api_server.operations import tasks
from api_server.operations.queries import Status
from api_server.operations.tasks import TaskRefused
from api_server.outbound.edges import EDGES, EdgeApi, EdgeRefuses
from api_server.pages import page
from api_server.pages.admin import queries
from api_server.pages.lists import EMPTY_IS_ALL, Pager, Refused, attempted
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.state.database import Database
from api_server.web import context
from api_server.web.errors import invalid
from api_server.web.routes import ADMINISTRATOR

pages = Pages()
_SHOWN_TASKS = 50


@attrs.frozen(kw_only=True)
class ListTasks:
    """The parameters of the list. `beyond` is the id of the last task on the previous page."""

    status: Status = "failed"
    name: str | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    beyond: int | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@attrs.frozen(kw_only=True)
class OneTask:
    id: int


@pages.get("/admin/background_tasks", access=ADMINISTRATOR)
async def list_tasks(request: web.Request, visitor: Visitor, params: ListTasks) -> web.Response:
    """List tasks of one status: failed ones with the newest first, others with the oldest first."""
    services = context.services(request)
    database, queue = services.database, services.queue
    rows = await tasks.list_tasks(
        database, params.status, name=params.name, beyond=params.beyond, limit=_SHOWN_TASKS + 1
    )
    shown_rows = rows[:_SHOWN_TASKS]
    query = {name: value for name, value in request.query.items() if value.strip() and name != "beyond"}
    last = await queries.last_deferred(database, list(queue.periodic))
    return page.answer(
        request,
        visitor,
        "admin/background_tasks.html",
        rows=shown_rows,
        params=params,
        names=queue.names,
        periodic=[(name, cron, last.get(name)) for name, cron in sorted(queue.periodic.items())],
        pager_links=Pager(
            first=f"?{urlencode(query)}" if params.beyond is not None else None,
            following=f"?{urlencode({**query, 'beyond': shown_rows[-1].id})}"
            if len(rows) > _SHOWN_TASKS
            else None,
        ),
        back=page.address(request),
    )


@pages.post("/admin/background_tasks/{id}/retry", access=ADMINISTRATOR)
async def retry(request: web.Request, visitor: Visitor, params: OneTask, form: Form) -> web.Response:
    return await attempted(request, visitor, form, _act(request, tasks.retry, params.id, "is retried"))


@pages.post("/admin/background_tasks/{id}/cancel", access=ADMINISTRATOR)
async def cancel(request: web.Request, visitor: Visitor, params: OneTask, form: Form) -> web.Response:
    return await attempted(request, visitor, form, _act(request, tasks.cancel, params.id, "removed"))


async def _act(
    request: web.Request, act: Callable[[Database, int], Awaitable[str]], task_id: int, outcome: str
) -> str:
    try:
        name = await act(context.services(request).database, task_id)
    except TaskRefused as problem:
        raise Refused(str(problem)) from None
    return f"Task {task_id} ({name}) {outcome}."


#: Maximum number of stored responses of an edge on one page.
_SHOWN_EDGES = 50
_PROBLEMS = (EdgeRefuses, aiohttp.ClientError, OSError, ValueError)  # TimeoutError is an OSError


@attrs.frozen(kw_only=True)
class ListEdges:
    """The parameters of the page. `edge` is the number (from 0) of the edge whose stored responses are shown, namely
    those whose paths begin with `prefix`."""

    edge: int | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    prefix: str = ""
    after: str | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@attrs.frozen(kw_only=True)
class PurgeEdges:
    """The parameters of a purge. `edge` is the number of one edge, None for all. Responses whose paths begin with
    `prefix` are purged."""

    edge: int | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    prefix: str = "/"


@attrs.frozen
class EdgeStatus:
    """An edge with its status, or with the reason why it has returned none."""

    url: str
    status: dict[str, Any] | None
    problem: str | None


@pages.get("/admin/edges", access=ADMINISTRATOR)
async def list_edges(request: web.Request, visitor: Visitor, params: ListEdges) -> web.Response:
    apis = await context.services(request)[EDGES].apis()
    statuses = await asyncio.gather(*(_edge_status(api) for api in apis))
    stored, following, problem = None, None, None
    if params.edge is not None and 0 <= params.edge < len(apis):
        try:
            stored, following = await apis[params.edge].stored(params.prefix, params.after, _SHOWN_EDGES)
        except _PROBLEMS as refusal:
            problem = failure_reason(refusal)
    values: dict[str, Any] = {"edges": statuses, "stored": stored, "following": following, "problem": problem}
    return page.answer(
        request, visitor, "admin/edges.html", params=params, back=page.address(request), **values
    )


@pages.post("/admin/edges/purge", access=ADMINISTRATOR, form_page=list_edges)
async def purge_edges(request: web.Request, visitor: Visitor, params: PurgeEdges) -> web.Response:
    prefix = params.prefix if params.prefix.startswith("/") else f"/{params.prefix}"
    count, problems = await purge(request, {"prefixes": [prefix]}, params.edge)
    if problems:
        raise invalid({"prefix": [f"Purge failed. {' '.join(problems)}"]})
    query = {} if params.edge is None else {"edge": params.edge, "prefix": prefix}
    message = f"Purged {count} stored responses below {prefix}."
    return page.see_other(request, visitor, f"/admin/edges?{urlencode(query)}", message)


async def purge(
    request: web.Request, document: dict[str, Any], edge: int | None = None
) -> tuple[int, list[str]]:
    """Have one edge or all of them purge what `document` names. Return the total number of purged responses, and a
    sentence about each edge that has failed."""
    all_apis = await context.services(request)[EDGES].apis()
    apis = [api for number, api in enumerate(all_apis) if edge in (None, number)]
    if not apis:
        return 0, ["Unknown edge. Edges are configured in the setting edge_urls."]
    results = await asyncio.gather(*(_purge(api, document) for api in apis))
    problems = [f"{api.url}: {problem}" for api, (_, problem) in zip(apis, results, strict=True) if problem]
    return sum(number for number, _ in results), problems


async def _purge(api: EdgeApi, document: dict[str, Any]) -> tuple[int, str | None]:
    try:
        return await api.purge(document), None
    except _PROBLEMS as problem:
        return 0, failure_reason(problem)


async def _edge_status(api: EdgeApi) -> EdgeStatus:
    try:
        return EdgeStatus(api.url, await api.status(), None)
    except _PROBLEMS as problem:
        return EdgeStatus(api.url, None, failure_reason(problem))


def failure_reason(problem: Exception) -> str:
    """Return in one sentence why an edge has not done what it was asked for."""
    match problem:
        case EdgeRefuses(status=401):
            return (
                "The edge rejects the token. Set the edge's purge_token to this service's edge_purge_token."
            )
        case EdgeRefuses(status=404):
            return "The edge does not support this request: it has no purge_token or another version."
        case EdgeRefuses():
            return f"The edge responded with status {problem.status}."
        case TimeoutError():
            return "The edge did not respond in time."
        case aiohttp.ClientConnectorError():
            return f"The edge cannot be reached: {problem.os_error.strerror or problem.os_error}."
        case _:
            return f"The edge's response cannot be read ({type(problem).__name__})."
