"""An artifact, or one file of an archive, as an answer."""

import hashlib
import mimetypes
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

from aiohttp import hdrs, web

from api_server.ci.jobs.artifacts import queries
from api_server.ci.jobs.artifacts.queries import Artifact
from api_server.namespaces.projects.project import Project
from api_server.state.objects import OBJECTS
from api_server.web import context
from api_server.web.answers import STORED_HEADERS, attachment, matches_etag, not_modified, send_stored
from api_server.web.errors import forbidden, not_found
from api_server.web.routes import Role
from api_server.zip_files import ZIP_FILES, DamagedError

_CODED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
_TYPES = {"zip": "application/zip", "gzip": "application/gzip", "raw": "application/octet-stream"}

_LEAST_ROLE = {"all": Role.NO_ACCESS, "developer": Role.DEVELOPER, "maintainer": Role.MAINTAINER}


async def archive_of(request: web.Request, job_id: int) -> Artifact:
    """Raises 404 where the job has no archive, or none any more."""
    archive = await queries.find_artifact(context.database(request), job_id)
    if archive is None:
        raise not_found("Artifacts")
    return archive


def check_may_read(project: Project, archive: Artifact) -> None:
    """Raises 403 for whom `artifacts:access` of the job's file leaves out; `none` is for nobody's eyes."""
    least = _LEAST_ROLE.get(archive.access)
    if least is None or project.role < least:
        raise forbidden()


async def send_artifact(request: web.Request, artifact: Artifact) -> web.StreamResponse:
    """The whole file, or the part of it that `Range` asks for."""
    headers = {
        "Content-Type": _TYPES[artifact.file_format],
        "Content-Disposition": attachment(artifact.filename),
    }
    digest = artifact.sha256.hex()
    try:
        return await send_stored(
            request, request.config_dict[OBJECTS], artifact.object_key, artifact.size, digest, headers
        )
    except FileNotFoundError:  # deleted since the row was read
        raise not_found("Artifacts") from None


def media_type(name: str) -> str:
    """The type of a file by the end of its name, as Workhorse tells it: of `a.tar.gz` that of gzip, not that of tar."""
    media, coding = mimetypes.guess_type(f"/{name}")  # with a slash no name is taken for a URL
    if coding is not None:
        return _CODED.get(coding, "application/octet-stream")
    return media or "application/octet-stream"


async def send_member(request: web.Request, artifact: Artifact, path: str) -> web.StreamResponse:
    """One file of a zip archive, unpacked as it is sent. Raises 404 where there is none at `path`, and where it is
    encrypted or packed in a way that is not known, or the archive is damaged."""
    files, key = request.config_dict[ZIP_FILES], artifact.object_key
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
        async with aclosing(files.unpack(key, artifact.size, member)) as pieces:
            return await _send(request, await anext(pieces, b""), pieces, headers)
    except (FileNotFoundError, DamagedError):  # deleted a moment ago, or broken from its first byte on
        raise not_found("File") from None


async def _send(
    request: web.Request, first: bytes, rest: AsyncIterator[bytes], headers: Mapping[str, str]
) -> web.StreamResponse:
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    if request.method != "HEAD":
        await response.write(first)
        try:
            async for piece in rest:
                await response.write(piece)
        except DamagedError:  # the client must not take this for the whole
            raise ConnectionResetError from None
    await response.write_eof()
    return response
