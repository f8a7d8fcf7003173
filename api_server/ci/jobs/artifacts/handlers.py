"""`/projects/:id/jobs/:job_id/artifacts`: people and tools download, keep and delete artifacts."""

import attrs
from aiohttp import web

from api_server.ci.jobs.access import find_job
from api_server.ci.jobs.artifacts import project_artifacts, queries, unsupported
from api_server.ci.jobs.artifacts.answer import archive_of, check_may_read, send_artifact, send_member
from api_server.ci.jobs.artifacts.queries import Artifact
from api_server.ci.jobs.parameters import OneJob
from api_server.ci.jobs.queries import show_job
from api_server.ci.pipelines.access import (
    archived_before,
    check_may_change,
    check_not_archived,
    short_ref,
)
from api_server.ci.pipelines.job_data import delete_objects
from api_server.namespaces.projects.access import project
from api_server.namespaces.projects.project import Project
from api_server.state import audit_trail
from api_server.web import context
from api_server.web.answers import json_text, json_value, no_content
from api_server.web.errors import record_not_found
from api_server.web.routes import Role, Routes, author

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


@routes.get(
    "/projects/{id}/jobs/artifacts/{ref:.+}/download",
    access=project(opens="builds"),
    takes_job_token=True,
    ignores=unsupported.OfArtifactsByRef,
)
async def download_of_ref(request: web.Request, wanted: ArtifactsOfRef, found: Project) -> web.StreamResponse:
    """The archive of a job (by name) of the last successful pipeline of a branch or tag."""
    archive = await _archive_of_ref(request, found, wanted)
    return await send_artifact(request, archive)


@routes.get(
    "/projects/{id}/jobs/artifacts/{ref:.+}/raw/{path:(?s:.+)}",
    access=project(opens="builds"),
    takes_job_token=True,
    ignores=unsupported.OfArtifactsByRef,
)
async def download_file_of_ref(request: web.Request, wanted: FileOfRef, found: Project) -> web.StreamResponse:
    """One file of that archive."""
    archive = await _archive_of_ref(request, found, wanted)
    return await send_member(request, archive, wanted.path)


@routes.get("/projects/{id}/jobs/{job_id}/artifacts", access=project(opens="builds"), takes_job_token=True)
async def download(request: web.Request, wanted: OneJob, found: Project) -> web.StreamResponse:
    """The archive."""
    job = await find_job(request, found, wanted.job_id)
    archive = await archive_of(request, job.id)
    check_may_read(found, archive)
    return await send_artifact(request, archive)


@routes.get(
    "/projects/{id}/jobs/{job_id}/artifacts/{path:(?s:.+)}",
    access=project(opens="builds"),
    takes_job_token=True,
)
async def download_file(request: web.Request, wanted: OneFile, found: Project) -> web.StreamResponse:
    """One file of the archive."""
    job = await find_job(request, found, wanted.job_id)
    archive = await archive_of(request, job.id)
    check_may_read(found, archive)
    return await send_member(request, archive, wanted.path)


@routes.post("/projects/{id}/jobs/{job_id}/artifacts/keep", access=project(Role.DEVELOPER, opens="builds"))
async def keep(request: web.Request, wanted: OneJob, found: Project) -> web.Response:
    """The artifacts do not expire any more."""
    job = await find_job(request, found, wanted.job_id)
    await check_may_change(request, found, job.ref, tag=job.tag)
    check_not_archived(request, job.created_at)
    async with context.database(request).transaction() as transaction:
        if not await queries.keep(transaction, job.id):
            raise record_not_found()
    return json_text(await show_job(context.database(request), job.id, archived_before(request)))


@routes.delete("/projects/{id}/jobs/{job_id}/artifacts", access=project(Role.MAINTAINER, opens="builds"))
async def delete(request: web.Request, wanted: OneJob, found: Project) -> web.Response:
    """The artifacts, not the log."""
    job = await find_job(request, found, wanted.job_id)
    await check_may_change(request, found, job.ref, tag=job.tag)
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


@routes.delete("/projects/{id}/artifacts", access=project(Role.MAINTAINER, opens="builds", changes=True))
async def delete_of_project(request: web.Request, found: Project) -> web.Response:
    """Soon all artifacts but the newest of each branch and tag are gone."""
    async with context.database(request).transaction() as transaction:
        await project_artifacts.request_deletion(transaction, found.id)
        await audit_trail.record(
            transaction,
            "project_artifacts_deleted",
            author=author(request),
            entity=found.entity,
            message="Deleted the artifacts of the project",
        )
    return json_value({"message": "202 Accepted"}, status=202)


async def _archive_of_ref(request: web.Request, found: Project, wanted: ArtifactsOfRef) -> Artifact:
    """Raises 400 for the name of a branch and a tag, 404, 403 where it is not for everybody."""
    ref, tag = short_ref(request, found, wanted.ref)
    archive = await queries.archive_of_ref(context.database(request), found.id, ref, tag=tag, name=wanted.job)
    check_may_read(found, archive)
    return archive
