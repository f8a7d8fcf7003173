"""`/runners/:id/jobs`: what a runner has run and runs (supporting resource)."""

import attrs
from aiohttp import web

from api_server.ci.jobs import queries
from api_server.ci.pipelines.states import Status
from api_server.ci.runners.access import find_runner
from api_server.web import context
from api_server.web.access import SIGNED_IN
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import parse
from api_server.web.routes import Routes, caller

routes = Routes()


@attrs.frozen(kw_only=True)
class ListRunnerJobs(Paginated):
    id: int
    status: Status | None = None
    system_id: str | None = None


@routes.get("/runners/{id}/jobs", access=SIGNED_IN)
async def list_runner_jobs(request: web.Request) -> web.Response:
    """For those who look after the runner, also the jobs that it runs now."""
    wanted = await parse(request, ListRunnerJobs)
    runner = await find_runner(request, wanted.id, to_change=True)
    page = wanted_page(wanted, queries.JOBS_OF_RUNNER)
    listed = await queries.list_runner_jobs(
        context.database(request),
        page,
        runner.id,
        viewer_id=caller(request).user_id,
        sees_all=caller(request).admin,
        status=wanted.status,
        system_id=wanted.system_id,
    )
    return await paginated(request, page, listed)
