"""Which buttons a visitor is shown: what the API would let her do now, by the same rules."""

import datetime

import attrs
from aiohttp import web

from api_server.ci.jobs.access import may_erase
from api_server.ci.jobs.queries import Job
from api_server.ci.pipelines.access import archived_before, may_change
from api_server.ci.pipelines.queries import Pipeline
from api_server.ci.pipelines.states import COMPLETE, RETRYABLE, TRANSITIONS
from api_server.namespaces.resources import Project
from api_server.pages.ci.queries import JobDetails, PipelineJob
from api_server.web.routes import Role


@attrs.frozen(kw_only=True)
class JobActions:
    """`force`: the job is being canceled already, and does not end."""

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


async def of_job(
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
        and may_erase(request, project, job),
    )  # fmt: skip


def _waits(row: PipelineJob) -> bool:
    """Whether the job can be played; a manual bridge that is not `when: manual` mirrors a pipeline."""
    if row.kind == "build":
        return row.status in ("manual", "scheduled")
    return (row.status, row.when_run) == ("manual", "manual")


async def of_pipeline(
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
    return project.role >= Role.DEVELOPER and await may_change(request, project, ref, tag=tag)


def _is_archived(request: web.Request, created_at: datetime.datetime) -> bool:
    limit = archived_before(request)
    return limit is not None and created_at < limit
