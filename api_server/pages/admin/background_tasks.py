"""`/admin/background_tasks`: what is queued, at work or has failed for good, tried again or removed; and what comes
again and again by itself."""

from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

import attrs
from aiohttp import web

from api_server.operations import tasks
from api_server.operations.task_queries import Status
from api_server.operations.tasks import TaskRefused
from api_server.pages import page
from api_server.pages.admin import task_queries
from api_server.pages.admin.acting import Refused, attempted
from api_server.pages.admin.lists import EMPTY_IS_ALL, Pager
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.state.database import Database
from api_server.state.queue import QUEUE
from api_server.web import context
from api_server.web.routes import ADMINISTRATOR

pages = Pages()
_SHOWN = 50


@attrs.frozen(kw_only=True)
class ListTasks:
    """`beyond` is the id of the last task that was seen."""

    status: Status = "failed"
    name: str | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    beyond: int | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@attrs.frozen(kw_only=True)
class OneTask:
    id: int


@pages.get("/admin/background_tasks", access=ADMINISTRATOR)
async def list_tasks(request: web.Request, who: Visitor, wanted: ListTasks) -> web.Response:
    """Failed ones the newest first, others the oldest."""
    database, queue = context.database(request), request.config_dict[QUEUE]
    found = await tasks.list_tasks(
        database, wanted.status, name=wanted.name, beyond=wanted.beyond, limit=_SHOWN + 1
    )
    shown = found[:_SHOWN]
    query = {name: value for name, value in request.query.items() if value.strip() and name != "beyond"}
    last = await task_queries.last_deferred(database, list(queue.periodic))
    return page.answer(
        request,
        who,
        "admin/background_tasks.html",
        rows=shown,
        wanted=wanted,
        names=queue.names,
        periodic=[(name, cron, last.get(name)) for name, cron in sorted(queue.periodic.items())],
        pager_links=Pager(
            first=f"?{urlencode(query)}" if wanted.beyond is not None else None,
            following=f"?{urlencode({**query, 'beyond': shown[-1].id})}" if len(found) > _SHOWN else None,
        ),
        back=page.address(request),
    )


@pages.post("/admin/background_tasks/{id}/retry", access=ADMINISTRATOR)
async def retry(request: web.Request, who: Visitor, wanted: OneTask, form: Form) -> web.Response:
    return await attempted(request, who, form, _done(request, tasks.retry, wanted.id, "is tried again"))


@pages.post("/admin/background_tasks/{id}/cancel", access=ADMINISTRATOR)
async def cancel(request: web.Request, who: Visitor, wanted: OneTask, form: Form) -> web.Response:
    return await attempted(request, who, form, _done(request, tasks.cancel, wanted.id, "is removed"))


async def _done(
    request: web.Request, act: Callable[[Database, int], Awaitable[str]], task_id: int, said: str
) -> str:
    try:
        name = await act(context.database(request), task_id)
    except TaskRefused as problem:
        raise Refused(str(problem)) from None
    return f"Task {task_id} ({name}) {said}."
