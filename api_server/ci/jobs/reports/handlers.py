"""`/projects/:id/pipelines/:pipeline_id/test_report` and `/test_report_summary` (supporting resources)."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from aiohttp import web

from api_server.ci.jobs.reports import cases, queries, reading
from api_server.ci.jobs.reports.cases import JobSuite
from api_server.ci.pipelines.access import find_pipeline
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.web.answers import json_text
from api_server.web.context import database
from api_server.web.routes import Routes

routes = Routes()


@attrs.frozen(kw_only=True)
class ReportsOfPipeline:
    id: str
    pipeline_id: int


@routes.get("/projects/{id}/pipelines/{pipeline_id}/test_report", access=project(opens="builds"))
async def show_report(request: web.Request, wanted: ReportsOfPipeline, found: Project) -> web.Response:
    """All test cases of the pipeline's jobs."""
    return await _answer(request, wanted, found, cases.report)


@routes.get("/projects/{id}/pipelines/{pipeline_id}/test_report_summary", access=project(opens="builds"))
async def show_summary(request: web.Request, wanted: ReportsOfPipeline, found: Project) -> web.Response:
    """How many there are."""
    return await _answer(request, wanted, found, cases.summary)


async def _answer(
    request: web.Request,
    wanted: ReportsOfPipeline,
    found: Project,
    shown: Callable[[Sequence[JobSuite]], dict[str, Any]],
) -> web.Response:
    pipeline = await find_pipeline(request, found, wanted.pipeline_id)
    reports = await queries.reports_of(database(request), pipeline.id)
    return json_text(await reading.answer(request, reports, shown))
