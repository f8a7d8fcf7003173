"""`/projects/:id/jobs/:job_id/artifacts`: people and tools download, keep and delete artifacts."""

import attrs
from aiohttp import web

from api_server.ci.jobs.access import find_changeable_job, find_job
from api_server.ci.jobs.artifacts import queries
from api_server.ci.jobs.artifacts.answer import send_artifact, send_member
from api_server.ci.jobs.parameters import OneJob
from api_server.ci.jobs.queries import show_job
from api_server.ci.pipelines.access import (
    archived_before,
    check_not_archived,
    find_readable_project,
)
from api_server.ci.pipelines.job_data import delete_objects
from api_server.namespaces.projects.access import project
from api_server.state import audit_trail
from api_server.state.database import Row
from api_server.web import context
from api_server.web.access import Role
from api_server.web.answers import json_text, no_content
from api_server.web.authorship import author
from api_server.web.errors import not_found, record_not_found
from api_server.web.params import parse
from api_server.web.routes import Routes

routes = Routes()


@attrs.frozen(kw_only=True)
class OneFile(OneJob):
    path: str


@attrs.frozen(kw_only=True)
class ArtifactsOfRef:
    id: str
    ref: str
    job: str


@attrs.frozen(kw_only=True)
class FileOfRef(ArtifactsOfRef):
    path: str


@routes.get("/projects/{id}/jobs/artifacts/{ref:.+}/download", access=project())
async def download_of_ref(request: web.Request) -> web.StreamResponse:
    """The archive of a job (by name) of the last successful pipeline of a branch or tag."""
    return await send_artifact(request, await _archive_of_ref(request, await parse(request, ArtifactsOfRef)))


@routes.get("/projects/{id}/jobs/artifacts/{ref:.+}/raw/{path:.+}", access=project())
async def download_file_of_ref(request: web.Request) -> web.StreamResponse:
    wanted = await parse(request, FileOfRef)
    return await send_member(request, await _archive_of_ref(request, wanted), wanted.path)


@routes.get("/projects/{id}/jobs/{job_id}/artifacts", access=project())
async def download(request: web.Request) -> web.StreamResponse:
    """The archive."""
    return await send_artifact(request, await _archive(request, await parse(request, OneJob)))


@routes.get("/projects/{id}/jobs/{job_id}/artifacts/{path:.+}", access=project())
async def download_file(request: web.Request) -> web.StreamResponse:
    """One file of the archive."""
    wanted = await parse(request, OneFile)
    return await send_member(request, await _archive(request, wanted), wanted.path)


@routes.post("/projects/{id}/jobs/{job_id}/artifacts/keep", access=project(Role.DEVELOPER))
async def keep(request: web.Request) -> web.Response:
    """The artifacts do not expire any more."""
    wanted = await parse(request, OneJob)
    found = await find_readable_project(request, wanted.id)
    job = await find_changeable_job(request, found, wanted.job_id)
    check_not_archived(request, job.created_at)
    async with context.database(request).transaction() as transaction:
        if not await queries.keep(transaction, job.id):
            raise record_not_found()
    shown = await show_job(context.database(request), job.id, archived_before(request))
    return json_text(shown)


@routes.delete("/projects/{id}/jobs/{job_id}/artifacts", access=project(Role.MAINTAINER))
async def delete(request: web.Request) -> web.Response:
    """The artifacts, not the log."""
    wanted = await parse(request, OneJob)
    found = await find_readable_project(request, wanted.id)
    job = await find_changeable_job(request, found, wanted.job_id)
    async with context.database(request).transaction() as transaction:
        keys = await queries.delete_artifacts(transaction, job.id)
        await delete_objects(transaction, keys)
        await audit_trail.record(
            transaction,
            "job_artifacts_deleted",
            author=author(request),
            entity=found.entity,
            target_id=job.id,
            target_details=job.name,
            message=f"Deleted the artifacts of job {job.id}",
            artifacts=len(keys),
        )
    return no_content()


async def _archive(request: web.Request, wanted: OneJob) -> Row:
    found = await find_readable_project(request, wanted.id)
    job = await find_job(request, found, wanted.job_id)
    return await _unexpired(request, job.id)


async def _archive_of_ref(request: web.Request, wanted: ArtifactsOfRef) -> Row:
    found = await find_readable_project(request, wanted.id)
    job_id = await queries.latest_of_ref(context.database(request), found.id, wanted.ref, wanted.job)
    if job_id is None:
        raise record_not_found()
    return await _unexpired(request, job_id)


async def _unexpired(request: web.Request, job_id: int) -> Row:
    archive = await queries.find_artifact(context.database(request), job_id)
    if archive is None:
        raise not_found("Artifacts")
    return archive
