"""`/<project>/-/pipelines`: the list, and the page of a pipeline with its stages, jobs and buttons."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import attrs
import orjson
from aiohttp import web

from api_server.ci.config.inputs import Input
from api_server.ci.jobs.access import may_erase
from api_server.ci.jobs.queries import Job
from api_server.ci.pipelines import handlers as api
from api_server.ci.pipelines import queries as pipelines
from api_server.ci.pipelines.access import archived_before, find_pipeline, may_change
from api_server.ci.pipelines.creation import MISSING_FILE, PipelineRefused, pipeline_maker
from api_server.ci.pipelines.queries import Pipeline
from api_server.ci.pipelines.states import COMPLETE, RETRYABLE, STATUSES, TRANSITIONS, Status
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.account import user_of
from api_server.pages.ci import queries, waiting, words
from api_server.pages.ci.queries import JobDetails, PipelineJob
from api_server.pages.files import EDIT
from api_server.pages.page import pager
from api_server.pages.routes import Pages, allows
from api_server.pages.sessions import Visitor
from api_server.web import context
from api_server.web.errors import invalid
from api_server.web.pagination import Paginated, requested_page
from api_server.web.routes import Role, ask, caller


@attrs.frozen(kw_only=True)
class JobActions:
    """The actions that a job's page offers. `force` is for a job that is already being canceled but does not end."""

    cancel: bool = False
    force: bool = False
    retry: bool = False
    play: bool = False
    erase: bool = False

    @property
    def any(self) -> bool:
        return self.cancel or self.retry or self.play or self.erase


@attrs.frozen(kw_only=True)
class PipelineActions:
    cancel: bool = False
    retry: bool = False
    delete: bool = False


async def actions_on_job(
    request: web.Request, project: Project, job: Job, row: PipelineJob, details: JobDetails
) -> JobActions:
    if not await _may_change(request, project, job.ref, tag=job.tag):
        return JobActions()
    build, archived = row.kind == "build", _is_archived(request, job.created_at)
    forces = row.status == "canceling" and project.role >= Role.MAINTAINER
    has_data = details.log_closed is not None or details.has_artifacts
    return JobActions(
        cancel=build and (row.status in TRANSITIONS["cancel"] or forces),
        force=forces,
        retry=not archived and not row.retried and row.status in RETRYABLE,
        play=not archived and _waits(row),
        erase=build and not archived and has_data and row.status in COMPLETE
        and may_erase(caller(request), project, job),
    )  # fmt: skip


def _waits(row: PipelineJob) -> bool:
    """Return whether the job can be played. A bridge without `when: manual` can have the status manual if it mirrors a
    pipeline: it cannot be played."""
    if row.kind == "build":
        return row.status in ("manual", "scheduled")
    return (row.status, row.when_run) == ("manual", "manual")


async def actions_on_pipeline(
    request: web.Request, project: Project, pipeline: Pipeline, jobs: list[PipelineJob]
) -> PipelineActions:
    delete = project.role >= Role.OWNER
    if not await _may_change(request, project, pipeline.ref, tag=pipeline.tag):
        return PipelineActions(delete=delete)
    latest = [job for job in jobs if not job.retried and job.kind != "external"]
    again = any(job.status in ("failed", "canceled") for job in latest)
    return PipelineActions(
        cancel=any(job.status in TRANSITIONS["cancel"] for job in latest if job.status != "manual"),
        retry=again and not _is_archived(request, pipeline.created_at),
        delete=delete,
    )


async def _may_change(request: web.Request, project: Project, ref: str, *, tag: bool) -> bool:
    return project.role >= Role.DEVELOPER and await may_change(
        context.services(request), project, ref, tag=tag
    )


def _is_archived(request: web.Request, created_at: datetime.datetime) -> bool:
    limit = archived_before(context.services(request))
    return limit is not None and created_at < limit


pages = Pages()

#: The rule for pages that run pipelines.
RUN = project(Role.DEVELOPER, feature="builds")

#: Maximum number of jobs on the page of a pipeline, including retried ones.
MAX_JOBS = 500
#: Maximum number of pending jobs for which the page explains why they wait.
MAX_EXPLAINED = 20


def chosen_status(value: Any) -> Status | None:
    """Return the status that a filter's form sends, or None for its empty choice. Raise ValueError for any other."""
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


@attrs.frozen(kw_only=True)
class NewPipeline:
    ref: str = ""
    #: One `NAME=value` in each line.
    variables: str = ""
    inputs: dict[str, str] = attrs.field(factory=dict)
    #: Whether to run nothing yet, and show the form for another branch or tag.
    shows: bool = False


@attrs.frozen
class Stage:
    """A stage: its jobs by name, and separately those that have been retried since."""

    name: str
    jobs: list[PipelineJob]
    earlier: list[PipelineJob]


@pages.get("/{project}/-/pipelines", access=project(feature="builds"))
async def list_pipelines(
    request: web.Request, visitor: Visitor, params: ListOfPipelines, project: Project
) -> web.Response:
    """List the pipelines, the newest first."""
    query = api.ListPipelines(id=str(project.id), status=params.status, ref=params.ref or None)
    part = requested_page(params, pipelines.LISTING)
    rows = await pipelines.list_pipelines(
        context.services(request).database, part, project.id, None, query.filters
    )
    return page.answer(
        request,
        visitor,
        "ci/pipelines.html",
        project=project,
        tab="pipelines",
        pipelines=orjson.loads(rows.body),
        pages=pager(request, part, rows),
        params=params,
        may_run=allows(RUN, project, visitor),
        may_edit=allows(EDIT, project, visitor),
        statuses=STATUSES,
        words=words,
    )


@pages.get("/{project}/-/pipelines/new", access=RUN)
async def show_new_pipeline(
    request: web.Request, visitor: Visitor, params: NewPipeline, project: Project
) -> web.Response:
    ref = params.ref or project.default_branch
    file = await inputs_of(request, visitor, project, ref)
    is_missing = file["problem"] == MISSING_FILE and ref == project.default_branch
    return page.answer(
        request,
        visitor,
        "ci/new_pipeline.html",
        project=project,
        tab="pipelines",
        ref=ref,
        may_write=is_missing and allows(EDIT, project, visitor),
        **file,
    )


async def inputs_of(request: web.Request, visitor: Visitor, project: Project, ref: str) -> dict[str, Any]:
    """Return the `inputs` that the CI file on the branch or tag declares, and the `problem` with the file, or ""."""
    try:
        inputs = await _declared_inputs(request, visitor, project, ref)
    except PipelineRefused as refused:
        return {"inputs": [], "problem": " ".join(refused.errors)}
    return {"inputs": list(inputs.values()), "problem": ""}


async def _declared_inputs(
    request: web.Request, visitor: Visitor, project: Project, ref: str
) -> dict[str, Input]:
    maker = pipeline_maker(context.services(request))
    return await maker.inputs_of_file(project.id, user_of(visitor).id, ref)


@pages.post("/{project}/-/pipelines", access=RUN, form_page=show_new_pipeline)
async def run_pipeline(
    request: web.Request, visitor: Visitor, params: NewPipeline, project: Project
) -> web.Response:
    ref = params.ref.strip()
    if params.shows:
        return page.see_other(request, visitor, f"{url(project, 'new')}?{urlencode({'ref': ref})}")
    variables = read_variables(params.variables)
    inputs = chosen_inputs(params.inputs, await _declared_inputs(request, visitor, project, ref))
    pipeline = await page.read(
        request, api.create_pipeline, project, ref=ref, variables=variables, inputs=inputs
    )
    return page.see_other(request, visitor, url(project, pipeline["id"]))


def chosen_inputs(form_values: Mapping[str, str], declared: Mapping[str, Input]) -> dict[str, str]:
    """Return the inputs that differ from their defaults: the form sends all of them, but only a limited number may be
    given to a pipeline."""
    values = {name: value.replace("\r\n", "\n") for name, value in form_values.items()}
    return {
        name: value
        for name, value in values.items()
        if name not in declared or value != declared[name].default_text
    }


def read_variables(text: str) -> list[dict[str, str]]:
    """Return the variables of a form's field. Raise 400 for a line that is neither empty nor `NAME=value`."""
    variables = []
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = line.partition("=")
        if not line.strip():
            continue
        if not equals or not name.strip():
            raise invalid({"variables": [f"Line {number} of the variables is not in the form NAME=value."]})
        variables.append({"key": name.strip(), "value": value})
    return variables


@pages.get("/{project}/-/pipelines/{id}", access=project(feature="builds"))
async def show_pipeline(
    request: web.Request, visitor: Visitor, params: OnePipeline, project: Project
) -> web.Response:
    services = context.services(request)
    database = services.database
    entity: dict[str, Any] = orjson.loads(await pipelines.show_pipeline(database, project.id, params.id))
    pipeline = await find_pipeline(services, project, params.id)
    jobs = await queries.jobs_of_pipeline(database, params.id, MAX_JOBS + 1)
    pending = [job.id for job in jobs if job.status == "pending" and not job.retried]
    return page.answer(
        request,
        visitor,
        "ci/pipeline.html",
        project=project,
        tab="pipelines",
        pipeline=entity,
        stages=stages_of(jobs[:MAX_JOBS]),
        is_cut=len(jobs) > MAX_JOBS,
        failed=[job for job in jobs if job.status == "failed" and not job.retried],
        parent=await queries.parent_of(database, params.id),
        reasons=await waiting.reasons(request, project, pending[:MAX_EXPLAINED]),
        actions=await actions_on_pipeline(request, project, pipeline, jobs),
        words=words,
    )


@pages.post("/{project}/-/pipelines/{id}/cancel", access=project(Role.DEVELOPER, feature="builds"))
async def cancel(
    request: web.Request, visitor: Visitor, params: OnePipeline, project: Project
) -> web.Response:
    await ask(request, api.cancel_pipeline, id=str(project.id), pipeline_id=params.id)
    return page.see_other(request, visitor, url(project, params.id), "Pipeline canceled.")


@pages.post("/{project}/-/pipelines/{id}/retry", access=project(Role.DEVELOPER, feature="builds"))
async def retry(
    request: web.Request, visitor: Visitor, params: OnePipeline, project: Project
) -> web.Response:
    await ask(request, api.retry_pipeline, id=str(project.id), pipeline_id=params.id)
    return page.see_other(request, visitor, url(project, params.id), "Failed and canceled jobs are retried.")


@pages.post("/{project}/-/pipelines/{id}/delete", access=project(Role.OWNER, feature="builds"))
async def delete(
    request: web.Request, visitor: Visitor, params: OnePipeline, project: Project
) -> web.Response:
    await ask(request, api.delete_pipeline, id=str(project.id), pipeline_id=params.id)
    path = f"/{project.full_path}/-/pipelines"
    return page.see_other(request, visitor, path, f"Pipeline {params.id} deleted.")


def url(project: Project, pipeline_id: int | str) -> str:
    return f"/{project.full_path}/-/pipelines/{pipeline_id}"


def stages_of(jobs: Sequence[PipelineJob]) -> list[Stage]:
    """Return the stages in their order, each with its jobs by name."""
    stages: dict[tuple[int, str], Stage] = {}
    for job in sorted(jobs, key=lambda job: (job.stage_index, job.name, job.id)):
        stage = stages.setdefault((job.stage_index, job.stage), Stage(job.stage, [], []))
        (stage.earlier if job.retried else stage.jobs).append(job)
    return list(stages.values())
