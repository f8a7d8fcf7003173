"""`/projects/:id/pipelines/:pipeline_id/test_report` and `/test_report_summary` (supporting resources)."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.ci.jobs.reports import cases
from api_server.ci.jobs.reports.cases import JobSuite
from api_server.ci.jobs.reports.reading import READERS, suites_of
from api_server.ci.pipelines.access import find_pipeline
from api_server.code.reading import counted_for
from api_server.namespaces.projects.access import project
from api_server.namespaces.projects.project import Project
from api_server.web.answers import json_text
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
    async with request.config_dict[READERS].place(*counted_for(request)):
        suites = await suites_of(request, pipeline.id)
        body = await asyncio.to_thread(lambda: orjson.dumps(shown(suites)).decode())
    return json_text(body)
