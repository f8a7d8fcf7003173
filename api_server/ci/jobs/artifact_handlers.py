"""`/projects/:id/jobs/:job_id/artifacts`: people and tools download, keep and delete artifacts."""

import hashlib
import mimetypes
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

import attrs
from aiohttp import hdrs, web

from api_server.ci.jobs import artifact_queries, upkeep
from api_server.ci.jobs.access import OneJob, find_job, may_read_artifacts
from api_server.ci.jobs.artifact_queries import Artifact
from api_server.ci.jobs.queries import show_job
from api_server.ci.pipelines import job_queries
from api_server.ci.pipelines.access import (
    archived_before,
    check_may_change,
    check_not_archived,
    short_ref,
)
from api_server.ci.pipelines.transitions import delete_objects
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state import audit_trail
from api_server.web import context
from api_server.web.answers import (
    STORED_HEADERS,
    attachment,
    json_text,
    json_value,
    matches_etag,
    no_content,
    not_modified,
    send_stored,
)
from api_server.web.auth import Actor
from api_server.web.errors import forbidden, not_found, record_not_found
from api_server.web.routes import Role, Routes
from api_server.zip_files import ZIP_FILES, DamagedError

_CODED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
_TYPES = {"zip": "application/zip", "gzip": "application/gzip", "raw": "application/octet-stream"}


async def archive_of(services: Services, job_id: int) -> Artifact:
    """Return the job's archive. Raise 404 if it has none or it has expired."""
    archive = await artifact_queries.find_artifact(services.database, job_id)
    if archive is None:
        raise not_found("Artifacts")
    return archive


def check_may_read(project: Project, archive: Artifact) -> None:
    """Raise 403 if `artifacts:access` of the job's file excludes the caller; `none` excludes everybody."""
    if not may_read_artifacts(project, archive.access):
        raise forbidden()


async def send_artifact(request: web.Request, artifact: Artifact) -> web.StreamResponse:
    """Send the whole file, or the range that the request asks for."""
    headers = {
        "Content-Type": _TYPES[artifact.file_format],
        "Content-Disposition": attachment(artifact.filename),
    }
    digest = artifact.sha256.hex()
    try:
        return await send_stored(
            request, context.services(request).objects, artifact.object_key, artifact.size, digest, headers
        )
    except FileNotFoundError:  # deleted since the row was read
        raise not_found("Artifacts") from None


def media_type(name: str) -> str:
    """Return the media type for a file name, like Workhorse: for `a.tar.gz` that of gzip, not that of tar."""
    media, coding = mimetypes.guess_type(f"/{name}")  # the slash keeps names from being parsed as URLs
    if coding is not None:
        return _CODED.get(coding, "application/octet-stream")
    return media or "application/octet-stream"


async def send_member(request: web.Request, artifact: Artifact, path: str) -> web.StreamResponse:
    """Send one file of a zip archive, decompressing it on the way.

    Raise 404 if there is no file at `path`, if it is encrypted or compressed with an unknown method, and if
    the archive is damaged.
    """
    files, key = context.services(request)[ZIP_FILES], artifact.object_key
    try:
        member = await files.find(key, path)
        if member is None:
            raise not_found("File")
        name = path.rpartition("/")[2]
        etag = f'"{hashlib.sha256(artifact.sha256 + path.encode()).hexdigest()}"'
        headers = STORED_HEADERS | {
            hdrs.CONTENT_TYPE: media_type(name),
            hdrs.CONTENT_DISPOSITION: attachment(name),
            hdrs.CONTENT_LENGTH: str(member.size),
            hdrs.ETAG: etag,
        }
        if matches_etag(request, etag):
            return not_modified(headers)
        async with aclosing(files.unpack(key, artifact.size, member)) as chunks:
            return await _send_chunks(request, await anext(chunks, b""), chunks, headers)
    except (FileNotFoundError, DamagedError):  # deleted a moment ago, or damaged from its first byte
        raise not_found("File") from None


async def _send_chunks(
    request: web.Request, first: bytes, rest: AsyncIterator[bytes], headers: Mapping[str, str]
) -> web.StreamResponse:
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    if request.method != "HEAD":
        await response.write(first)
        try:
            async for chunk in rest:
                await response.write(chunk)
        except DamagedError:  # the client must not take this for the whole file
            raise ConnectionResetError from None
    await response.write_eof()
    return response


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
    access=project(feature="builds"),
    takes_job_token=True,
    answers="200 bytes",
)
async def download_of_ref(
    request: web.Request, services: Services, params: ArtifactsOfRef, project: Project
) -> web.StreamResponse:
    """Download the archive of a job (by name) of the last successful pipeline of a branch or tag."""
    archive = await _archive_of_ref(services, project, params)
    return await send_artifact(request, archive)


@routes.get(
    "/projects/{id}/jobs/artifacts/{ref:.+}/raw/{path:(?s:.+)}",
    access=project(feature="builds"),
    takes_job_token=True,
    answers="200 bytes",
)
async def download_file_of_ref(
    request: web.Request, services: Services, params: FileOfRef, project: Project
) -> web.StreamResponse:
    """Download one file from the archive of a job (by name) of the last successful pipeline of a branch or
    tag."""
    archive = await _archive_of_ref(services, project, params)
    return await send_member(request, archive, params.path)


@routes.get(
    "/projects/{id}/jobs/{job_id}/artifacts",
    access=project(feature="builds"),
    takes_job_token=True,
    answers="200 bytes",
)
async def download(
    request: web.Request, services: Services, params: OneJob, project: Project
) -> web.StreamResponse:
    """Download the archive of a job."""
    job = await find_job(services, project, params.job_id)
    archive = await archive_of(services, job.id)
    check_may_read(project, archive)
    return await send_artifact(request, archive)


@routes.get(
    "/projects/{id}/jobs/{job_id}/artifacts/{path:(?s:.+)}",
    access=project(feature="builds"),
    takes_job_token=True,
    answers="200 bytes",
)
async def download_file(
    request: web.Request, services: Services, params: OneFile, project: Project
) -> web.StreamResponse:
    """Download one file from the archive of a job."""
    job = await find_job(services, project, params.job_id)
    archive = await archive_of(services, job.id)
    check_may_read(project, archive)
    return await send_member(request, archive, params.path)


@routes.post(
    "/projects/{id}/jobs/{job_id}/artifacts/keep",
    access=project(Role.DEVELOPER, feature="builds"),
    answers="200 Job",
)
async def keep(services: Services, params: OneJob, project: Project) -> web.Response:
    """Keep the artifacts of a job: they no longer expire."""
    job = await find_job(services, project, params.job_id)
    await check_may_change(services, project, job.ref, tag=job.tag)
    check_not_archived(services, job.created_at)
    async with services.database.transaction() as transaction:
        if not await artifact_queries.keep(transaction, job.id):
            raise record_not_found()
    return json_text(await show_job(services.database, job.id, archived_before(services)))


@routes.delete(
    "/projects/{id}/jobs/{job_id}/artifacts", access=project(Role.MAINTAINER, feature="builds"), answers="204"
)
async def delete(services: Services, actor: Actor, params: OneJob, project: Project) -> web.Response:
    """Delete the artifacts of a job, but not its log."""
    job = await find_job(services, project, params.job_id)
    await check_may_change(services, project, job.ref, tag=job.tag)
    async with services.database.transaction() as transaction:
        keys = await job_queries.delete_artifacts(transaction, [job.id])
        await delete_objects(transaction, keys)
        target = project.entity.target(job.id, job.name)
        await audit_trail.record(
            transaction, "job_artifacts_deleted", actor.author, target, artifacts=len(keys)
        )
    return no_content()


@routes.delete(
    "/projects/{id}/artifacts",
    access=project(Role.MAINTAINER, feature="builds", changes=True),
    answers="202 Message",
)
async def delete_of_project(services: Services, actor: Actor, project: Project) -> web.Response:
    """Delete, in the background, all artifacts of a project except the newest of each branch and tag."""
    async with services.database.transaction() as transaction:
        await upkeep.request_artifact_deletion(transaction, project.id)
        await audit_trail.record(transaction, "project_artifacts_deleted", actor.author, project.entity)
    return json_value({"message": "202 Accepted"}, status=202)


async def _archive_of_ref(services: Services, project: Project, params: ArtifactsOfRef) -> Artifact:
    """Return the archive. Raise 400 if the name is that of a branch and of a tag, 404, and 403 if the caller
    may not read it."""
    ref, tag = short_ref(services, project, params.ref)
    archive = await artifact_queries.archive_of_ref(
        services.database, project.id, ref, tag=tag, name=params.job
    )
    check_may_read(project, archive)
    return archive
