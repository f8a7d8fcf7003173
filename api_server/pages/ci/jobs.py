"""`/<project>/-/jobs`: the list, and the page of one, whose log is followed while it runs."""

import re
from typing import Any

import aiohttp_jinja2
import attrs
import orjson
from aiohttp import hdrs, web

from api_server.ci.jobs import handlers
from api_server.ci.jobs import queries as jobs
from api_server.ci.jobs.access import find_job, find_job_or_bridge
from api_server.ci.jobs.handlers import may_read_log
from api_server.ci.jobs.queries import Job
from api_server.ci.pipelines.access import archived_before
from api_server.ci.pipelines.states import COMPLETE, STATUSES
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.ci import actions, log_reading, queries, words
from api_server.pages.ci.log_reading import LogPart
from api_server.pages.ci.log_text import state_of
from api_server.pages.ci.pipelines import chosen_status
from api_server.pages.ci.queries import JobDetails, PipelineJob
from api_server.pages.paging import pager
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.web import context
from api_server.web.answers import STORED_HEADERS, matches_etag
from api_server.web.errors import bad_parameters, forbidden
from api_server.web.pagination import Paginated, wanted_page
from api_server.web.routes import ask

pages = Pages()

#: Jobs of one name in one pipeline.
MOST_ATTEMPTS = 50
#: What the API shows of builds and not of bridges.
_OF_BUILDS: dict[str, Any] = {
    "tag_list": [],
    "runner": None,
    "runner_manager": None,
    "artifacts_expire_at": None,
}
#: `Range` in bytes of the log as it is stored, of which the answer is a rendering.
_RANGE = re.compile(r"log=(\d{1,18})-", re.ASCII)


@attrs.frozen(kw_only=True)
class ListOfJobs(Paginated):
    status: Any = attrs.field(default=None, converter=chosen_status)


@attrs.frozen(kw_only=True)
class OneJob:
    id: int


@attrs.frozen(kw_only=True)
class FollowedLog(OneJob):
    #: `State.text` of the part before.
    state: str


@attrs.frozen(kw_only=True)
class Sight:
    """All that the page of a job shows."""

    shown: dict[str, Any]
    row: PipelineJob
    details: JobDetails
    attempts: list[PipelineJob]
    actions: actions.JobActions
    #: None where it may not be read, and of bridges, which have none.
    log: LogPart | None


@pages.get("/{project}/-/jobs", access=project(opens="builds"))
async def list_jobs(request: web.Request, who: Visitor, wanted: ListOfJobs, found: Project) -> web.Response:
    """Newest first."""
    part = wanted_page(wanted, jobs.JOBS_OF_PROJECT)
    scope: list[str] | None = [wanted.status] if wanted.status else None
    listed = await jobs.list_project_jobs(
        context.database(request), part, found.id, scope, archived_before(request)
    )
    return page.answer(
        request,
        who,
        "ci/jobs.html",
        project=found,
        tab="jobs",
        jobs=orjson.loads(listed.body),
        pages=pager(request, part, listed),
        wanted=wanted,
        statuses=STATUSES,
        words=words,
    )


@pages.get("/{project}/-/jobs/{id}", access=project(opens="builds"))
async def show_job(request: web.Request, who: Visitor, wanted: OneJob, found: Project) -> web.Response:
    return await job_page(request, who, found, wanted.id)


async def job_page(
    request: web.Request,
    who: Visitor,
    found: Project,
    job_id: int,
    *,
    problem: str = "",
    variables: str = "",
    status: int = 200,
) -> web.Response:
    """The page; after a form was refused with its `problem` and what stood in it."""
    sight = await _sight(request, found, await find_job_or_bridge(request, found, job_id))
    return page.answer(
        request,
        who,
        "ci/job.html",
        status,
        project=found,
        tab="jobs",
        sight=sight,
        job=sight.shown,
        row=sight.row,
        is_done=_is_done(sight.row, sight.details, sight.log),
        words=words,
        problem=problem,
        variables=variables,
    )


@pages.get("/{project}/-/jobs/{id}/log", access=project(opens="builds"))
async def follow_log(request: web.Request, wanted: FollowedLog, found: Project) -> web.StreamResponse:
    """What has been added to the log, for the script on the page: 206 from `Range: log=<byte>-` on, where a line
    begins; 304 where nothing has; 416 where the log is not that long any more."""
    job = await find_job(request, found, wanted.id)
    if not may_read_log(found, job):
        raise forbidden()
    asked = _RANGE.fullmatch(request.headers.get(hdrs.RANGE, ""))
    if asked is None:
        raise bad_parameters("Range has to be log=<byte>-")
    part = await log_reading.part_from(request, job.id, int(asked[1]), _state(wanted.state))
    if part is None:
        raise web.HTTPRequestRangeNotSatisfiable
    row = await queries.find_job(context.database(request), job.id)
    done = _is_done(row, await queries.job_details(context.database(request), job.id), part)
    headers = STORED_HEADERS | {
        hdrs.ETAG: f'"{part.end}-{row.status}-{done:d}"',
        hdrs.CACHE_CONTROL: "no-store",
    }
    if matches_etag(request, headers[hdrs.ETAG]):
        return web.Response(status=304, headers=headers)
    values = {"project": found, "row": row, "log": part, "is_done": done}
    response = aiohttp_jinja2.render_template("ci/log.html", request, values, status=206)
    response.headers.update(headers)
    last = max(part.end - 1, part.start)
    response.headers[hdrs.CONTENT_RANGE] = f"log {part.start}-{last}/{part.size}"
    return response


@pages.get("/{project}/-/jobs/{id}/raw", access=project(opens="builds"))
async def show_raw_log(request: web.Request, wanted: OneJob, found: Project) -> web.StreamResponse:
    """All of it, as text."""
    return await ask(request, handlers.show_log, id=str(found.id), job_id=wanted.id)


async def _sight(request: web.Request, found: Project, job: Job) -> Sight:
    database = context.database(request)
    show = jobs.show_bridge if job.kind == "bridge" else jobs.show_job
    shown = _OF_BUILDS | orjson.loads(await show(database, job.id, archived_before(request)))
    details = await queries.job_details(database, job.id)
    attempts = await queries.attempts(database, job.id, MOST_ATTEMPTS)
    row = await queries.find_job(database, job.id)
    readable = may_read_log(found, job)
    return Sight(
        shown=shown,
        row=row,
        details=details,
        attempts=attempts,
        actions=await actions.of_job(request, found, job, row, details),
        log=await log_reading.last_part(request, job.id) if readable and job.kind == "build" else None,
    )


def _is_done(row: PipelineJob, details: JobDetails, log: LogPart | None) -> bool:
    """Whether the page will not change by itself any more."""
    complete = row.kind == "build" and row.status in COMPLETE
    return complete and (details.log_closed is not False) and (log is None or log.end == log.size)


def _state(text: str) -> Any:
    try:
        return state_of(text)
    except ValueError:
        raise bad_parameters("state is invalid") from None
