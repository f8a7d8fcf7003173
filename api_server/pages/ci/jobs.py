"""`/<project>/-/jobs`: the list, the page of a job with its buttons and its growing log, and its artifacts."""

import re
from typing import Any

import aiohttp_jinja2
import attrs
import orjson
from aiohttp import hdrs, web

from api_server.ci.jobs import artifact_handlers, handlers
from api_server.ci.jobs import queries as jobs
from api_server.ci.jobs.access import find_job, find_job_or_bridge
from api_server.ci.jobs.artifact_handlers import archive_of, check_may_read
from api_server.ci.jobs.handlers import may_read_log
from api_server.ci.jobs.queries import Job
from api_server.ci.pipelines.access import archived_before
from api_server.ci.pipelines.states import COMPLETE, STATUSES
from api_server.code.reading import counted_for
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.ci import logs as log_pages
from api_server.pages.ci import pipelines, queries, waiting, words
from api_server.pages.ci.logs import LogPart, state_of
from api_server.pages.ci.pipelines import chosen_status, read_variables
from api_server.pages.ci.queries import JobDetails, PipelineJob
from api_server.pages.page import pager
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.web import context
from api_server.web.answers import STORED_HEADERS, matches_etag
from api_server.web.errors import bad_parameters, forbidden, not_found
from api_server.web.pagination import Paginated, requested_page
from api_server.web.routes import Role, ask, caller_or_anonymous
from api_server.zip_files import ZIP_FILES

pages = Pages()

#: Maximum number of jobs of one name in one pipeline that are shown.
MAX_ATTEMPTS = 50
#: Fields that the API shows for builds but not for bridges.
_OF_BUILDS: dict[str, Any] = {
    "tag_list": [],
    "runner": None,
    "runner_manager": None,
    "artifacts_expire_at": None,
}
#: The request's `Range` in bytes of the stored log. The answer is that part as HTML.
_RANGE = re.compile(r"log=(\d{1,18})-", re.ASCII)


@attrs.frozen(kw_only=True)
class ListOfJobs(Paginated):
    status: Any = attrs.field(default=None, converter=chosen_status)


@attrs.frozen(kw_only=True)
class OneJob:
    id: int


@attrs.frozen(kw_only=True)
class FollowedLog(OneJob):
    #: The `State.text` of the part before.
    state: str


@attrs.frozen(kw_only=True)
class JobView:
    """All that the page of a job shows."""

    entity: dict[str, Any]
    row: PipelineJob
    details: JobDetails
    attempts: list[PipelineJob]
    actions: pipelines.JobActions
    #: None for bridges, which have no log, and if the visitor may not read it.
    log: LogPart | None


@pages.get("/{project}/-/jobs", access=project(feature="builds"))
async def list_jobs(
    request: web.Request, visitor: Visitor, params: ListOfJobs, project: Project
) -> web.Response:
    """List the jobs, the newest first."""
    services = context.services(request)
    part = requested_page(params, jobs.JOBS_OF_PROJECT)
    scope: list[str] | None = [params.status] if params.status else None
    rows = await jobs.list_project_jobs(services.database, part, project.id, scope, archived_before(services))
    return page.answer(
        request,
        visitor,
        "ci/jobs.html",
        project=project,
        tab="jobs",
        jobs=orjson.loads(rows.body),
        pages=pager(request, part, rows),
        params=params,
        statuses=STATUSES,
        words=words,
    )


@pages.get("/{project}/-/jobs/{id}", access=project(feature="builds"))
async def show_job(request: web.Request, visitor: Visitor, params: OneJob, project: Project) -> web.Response:
    job = await find_job_or_bridge(context.services(request), project, params.id)
    view = await _view(request, project, job)
    return page.answer(
        request,
        visitor,
        "ci/job.html",
        project=project,
        tab="jobs",
        sight=view,
        job=view.entity,
        row=view.row,
        reason=(await waiting.reasons(request, project, [job.id])).get(job.id),
        is_done=_is_done(view.row, view.details, view.log),
        words=words,
    )


@pages.get("/{project}/-/jobs/{id}/log", access=project(feature="builds"))
async def follow_log(request: web.Request, params: FollowedLog, project: Project) -> web.StreamResponse:
    """Return what has been added to the log, for the script of the page. Answer 206 with the part that begins at
    `Range: log=<byte>-`, which is the beginning of a line; 304 if nothing was added; 416 if the log is shorter now."""
    services = context.services(request)
    job = await find_job(services, project, params.id)
    if not may_read_log(project, job):
        raise forbidden()
    log_range = _RANGE.fullmatch(request.headers.get(hdrs.RANGE, ""))
    if log_range is None:
        raise bad_parameters("Range has to be log=<byte>-")
    part = await log_pages.part_from(request, job.id, int(log_range[1]), _state(params.state))
    if part is None:
        raise web.HTTPRequestRangeNotSatisfiable
    row = await queries.find_job(services.database, job.id)
    done = _is_done(row, await queries.job_details(services.database, job.id), part)
    headers = STORED_HEADERS | {
        hdrs.ETAG: f'"{part.end}-{row.status}-{done:d}"',
        hdrs.CACHE_CONTROL: "no-store",
    }
    if matches_etag(request, headers[hdrs.ETAG]):
        return web.Response(status=304, headers=headers)
    values = {"project": project, "row": row, "log": part, "is_done": done}
    response = aiohttp_jinja2.render_template("ci/log.html", request, values, status=206)
    response.headers.update(headers)
    last = max(part.end - 1, part.start)
    response.headers[hdrs.CONTENT_RANGE] = f"log {part.start}-{last}/{part.size}"
    return response


@pages.get("/{project}/-/jobs/{id}/raw", access=project(feature="builds"))
async def show_raw_log(request: web.Request, params: OneJob, project: Project) -> web.StreamResponse:
    """Return the whole log as text."""
    return await ask(request, handlers.show_log, id=str(project.id), job_id=params.id)


async def _view(request: web.Request, project: Project, job: Job) -> JobView:
    services = context.services(request)
    database = services.database
    show = jobs.show_bridge if job.kind == "bridge" else jobs.show_job
    entity = _OF_BUILDS | orjson.loads(await show(database, job.id, archived_before(services)))
    details = await queries.job_details(database, job.id)
    attempts = await queries.attempts(database, job.id, MAX_ATTEMPTS)
    row = await queries.find_job(database, job.id)
    readable = may_read_log(project, job)
    return JobView(
        entity=entity,
        row=row,
        details=details,
        attempts=attempts,
        actions=await pipelines.actions_on_job(request, project, job, row, details),
        log=await log_pages.last_part(request, job.id) if readable and job.kind == "build" else None,
    )


def _is_done(row: PipelineJob, details: JobDetails, log: LogPart | None) -> bool:
    """Return whether the page will not change by itself any more."""
    complete = row.kind == "build" and row.status in COMPLETE
    return complete and (details.log_closed is not False) and (log is None or log.end == log.size)


def _state(text: str) -> Any:
    try:
        return state_of(text)
    except ValueError:
        raise bad_parameters("state is invalid") from None


DEVELOPER = project(Role.DEVELOPER, feature="builds")


@attrs.frozen(kw_only=True)
class CancelJob(OneJob):
    force: bool = False


@attrs.frozen(kw_only=True)
class PlayJob(OneJob):
    #: One `NAME=value` in each line.
    variables: str = ""


@pages.post("/{project}/-/jobs/{id}/cancel", access=DEVELOPER)
async def cancel(request: web.Request, visitor: Visitor, params: CancelJob, project: Project) -> web.Response:
    await ask(request, handlers.cancel_job, id=str(project.id), job_id=params.id, force=params.force)
    return _to(
        request,
        visitor,
        project,
        params.id,
        "Job canceled. A running job stops as soon as its runner is notified.",
    )


@pages.post("/{project}/-/jobs/{id}/retry", access=DEVELOPER)
async def retry(request: web.Request, visitor: Visitor, params: OneJob, project: Project) -> web.Response:
    answer = await ask(request, handlers.retry_job, id=str(project.id), job_id=params.id)
    return _to(request, visitor, project, _id(answer), "Job retried. This is the new attempt.")


@pages.post("/{project}/-/jobs/{id}/erase", access=DEVELOPER)
async def erase(request: web.Request, visitor: Visitor, params: OneJob, project: Project) -> web.Response:
    await ask(request, handlers.erase_job, id=str(project.id), job_id=params.id)
    return _to(request, visitor, project, params.id, "Job log and artifacts erased.")


@pages.post("/{project}/-/jobs/{id}/artifacts/keep", access=DEVELOPER)
async def keep(request: web.Request, visitor: Visitor, params: OneJob, project: Project) -> web.Response:
    await ask(request, artifact_handlers.keep, id=str(project.id), job_id=params.id)
    return _to(request, visitor, project, params.id, "Artifacts kept: they no longer expire.")


@pages.post("/{project}/-/jobs/{id}/play", access=DEVELOPER, form_page=show_job)
async def play(request: web.Request, visitor: Visitor, params: PlayJob, project: Project) -> web.Response:
    fields = {"job_id": params.id, "job_variables_attributes": read_variables(params.variables)}
    answer = await ask(request, handlers.play_job, project, **fields)
    return _to(request, visitor, project, _id(answer), "Job started.")


def _id(answer: web.StreamResponse) -> int:
    """Return the id of the job in the API's answer."""
    assert isinstance(answer, web.Response)  # noqa: S101  # a handler of JSON
    return int(orjson.loads(answer.text or "")["id"])


def _to(request: web.Request, visitor: Visitor, project: Project, job_id: int, text: str) -> web.Response:
    return page.see_other(request, visitor, f"/{project.full_path}/-/jobs/{job_id}", text)


#: Maximum number of files and folders listed at once.
MAX_ENTRIES = 1_000

_ONE = "/{project}/-/jobs/{id}/artifacts"


@attrs.frozen(kw_only=True)
class ArtifactPath(OneJob):
    path: str = ""


@pages.get(f"{_ONE}/browse", access=project(feature="builds"))
@pages.get(f"{_ONE}/browse/{{path:.*}}", access=project(feature="builds"))
async def browse(
    request: web.Request, visitor: Visitor, params: ArtifactPath, project: Project
) -> web.Response:
    """List a folder of the artifacts archive."""
    services = context.services(request)
    job = await find_job(services, project, params.id)
    archive = await archive_of(services, job.id)
    check_may_read(project, archive)
    path = params.path.strip("/")
    folder = await services[ZIP_FILES].folder(
        archive.object_key,
        f"{path}/" if path else "",
        MAX_ENTRIES,
        *counted_for(caller_or_anonymous(request)),
    )
    if path and not folder.folders and not folder.files:
        raise not_found("Folder")
    return page.answer(
        request,
        visitor,
        "ci/artifacts.html",
        project=project,
        tab="jobs",
        job=job,
        folder=folder,
        place=path,
        archive=archive,
    )


@pages.get(f"{_ONE}/download", access=project(feature="builds"))
async def download(request: web.Request, params: OneJob, project: Project) -> web.StreamResponse:
    """Return the artifacts archive."""
    return await ask(request, artifact_handlers.download, id=str(project.id), job_id=params.id)


@pages.get(f"{_ONE}/file/{{path:.+}}", access=project(feature="builds"))
@pages.get(f"{_ONE}/raw/{{path:.+}}", access=project(feature="builds"))
async def download_file(request: web.Request, params: ArtifactPath, project: Project) -> web.StreamResponse:
    """Return one file of the artifacts archive."""
    return await ask(
        request, artifact_handlers.download_file, id=str(project.id), job_id=params.id, path=params.path
    )
