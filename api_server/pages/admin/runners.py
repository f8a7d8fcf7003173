"""`/admin/runners`: who runs the jobs, and whether they are there."""

from typing import Literal

import attrs
from aiohttp import web

from api_server.ci.runners import handlers
from api_server.pages.admin import list_queries, lists
from api_server.pages.admin.acting import act
from api_server.pages.admin.lists import EMPTY_IS_ALL, Filters
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.web import context
from api_server.web.routes import ADMINISTRATOR

pages = Pages()

RunnerType = Literal["instance_type", "group_type", "project_type"]


@attrs.frozen(kw_only=True)
class ListRunners(Filters):
    status: list_queries.RunnerStatus | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    type: RunnerType | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    state: Literal["paused", "active"] | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@pages.get("/admin/runners", access=ADMINISTRATOR)
async def list_runners(request: web.Request, who: Visitor, wanted: ListRunners) -> web.Response:
    listed = await list_queries.list_runners(
        context.database(request),
        wanted.page,
        status=wanted.status,
        runner_type=wanted.type,
        paused=None if wanted.state is None else wanted.state == "paused",
    )
    return lists.answer(request, who, "runners.html", wanted, listed)


act(pages, "/admin/runners/{id}/pause", handlers.update_runner, "The runner gets no more jobs.")
act(pages, "/admin/runners/{id}/resume", handlers.update_runner, "The runner gets jobs again.")
act(pages, "/admin/runners/{id}/remove", handlers.delete_runner, "The runner is removed.")
