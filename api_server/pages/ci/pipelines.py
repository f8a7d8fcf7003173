"""`/<project>/-/pipelines`: the list, and the page of one, with its stages, jobs and what they need."""

from collections.abc import Sequence
from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.ci.pipelines import handlers as api
from api_server.ci.pipelines import queries as pipelines
from api_server.ci.pipelines.access import find_pipeline
from api_server.ci.pipelines.states import STATUSES, Status
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.ci import actions, queries, words
from api_server.pages.ci.queries import PipelineJob
from api_server.pages.paging import pager
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.web import context
from api_server.web.pagination import Paginated, wanted_page
from api_server.web.routes import Role, ask

pages = Pages()

#: Jobs on the page of one pipeline, those that were tried before among them.
MOST_JOBS = 500


def chosen_status(value: Any) -> Status | None:
    """What a filter's form sends; its empty choice is all of them."""
    if value and value not in STATUSES:
        raise ValueError("status does not have a valid value")
    return value or None


@attrs.frozen(kw_only=True)
class ListOfPipelines(Paginated):
    status: Any = attrs.field(default=None, converter=chosen_status)
    ref: str | None = None


@attrs.frozen(kw_only=True)
class OnePipeline:
    id: int


@attrs.frozen
class Stage:
    """A column: the jobs that count, by name, and those that others have taken the place of."""

    name: str
    jobs: list[PipelineJob]
    earlier: list[PipelineJob]


@pages.get("/{project}/-/pipelines", access=project(opens="builds"))
async def list_pipelines(
    request: web.Request, who: Visitor, wanted: ListOfPipelines, found: Project
) -> web.Response:
    """Newest first."""
    asked = api.ListPipelines(id=str(found.id), status=wanted.status, ref=wanted.ref or None)
    part = wanted_page(wanted, pipelines.LISTING)
    listed = await pipelines.list_pipelines(context.database(request), part, found.id, None, asked.filters)
    return page.answer(
        request,
        who,
        "ci/pipelines.html",
        project=found,
        tab="pipelines",
        pipelines=orjson.loads(listed.body),
        pages=pager(request, part, listed),
        wanted=wanted,
        statuses=STATUSES,
        words=words,
    )


@pages.get("/{project}/-/pipelines/{id}", access=project(opens="builds"))
async def show_pipeline(
    request: web.Request, who: Visitor, wanted: OnePipeline, found: Project
) -> web.Response:
    database = context.database(request)
    shown: dict[str, Any] = orjson.loads(await pipelines.show_pipeline(database, found.id, wanted.id))
    pipeline = await find_pipeline(request, found, wanted.id)
    jobs = await queries.jobs_of_pipeline(database, wanted.id, MOST_JOBS + 1)
    return page.answer(
        request,
        who,
        "ci/pipeline.html",
        project=found,
        tab="pipelines",
        pipeline=shown,
        stages=stages_of(jobs[:MOST_JOBS]),
        is_cut=len(jobs) > MOST_JOBS,
        failed=[job for job in jobs if job.status == "failed" and not job.retried],
        parent=await queries.parent_of(database, wanted.id),
        actions=await actions.of_pipeline(request, found, pipeline, jobs),
        words=words,
    )


@pages.post("/{project}/-/pipelines/{id}/cancel", access=project(Role.DEVELOPER, opens="builds"))
async def cancel(request: web.Request, who: Visitor, wanted: OnePipeline, found: Project) -> web.Response:
    await ask(request, api.cancel_pipeline, id=str(found.id), pipeline_id=wanted.id)
    return page.see_other(request, who, url(found, wanted.id), "Its jobs are canceled.")


@pages.post("/{project}/-/pipelines/{id}/retry", access=project(Role.DEVELOPER, opens="builds"))
async def retry(request: web.Request, who: Visitor, wanted: OnePipeline, found: Project) -> web.Response:
    await ask(request, api.retry_pipeline, id=str(found.id), pipeline_id=wanted.id)
    return page.see_other(request, who, url(found, wanted.id), "What failed or was canceled runs again.")


@pages.post("/{project}/-/pipelines/{id}/delete", access=project(Role.OWNER, opens="builds"))
async def delete(request: web.Request, who: Visitor, wanted: OnePipeline, found: Project) -> web.Response:
    await ask(request, api.delete_pipeline, id=str(found.id), pipeline_id=wanted.id)
    path = f"/{found.full_path}/-/pipelines"
    return page.see_other(
        request, who, path, f"Pipeline {wanted.id} is deleted, with its jobs and their logs."
    )


def url(found: Project, pipeline_id: int) -> str:
    return f"/{found.full_path}/-/pipelines/{pipeline_id}"


def stages_of(jobs: Sequence[PipelineJob]) -> list[Stage]:
    """In their order; within one, jobs by name."""
    stages: dict[tuple[int, str], Stage] = {}
    for job in sorted(jobs, key=lambda job: (job.stage_index, job.name, job.id)):
        stage = stages.setdefault((job.stage_index, job.stage), Stage(job.stage, [], []))
        (stage.earlier if job.retried else stage.jobs).append(job)
    return list(stages.values())
