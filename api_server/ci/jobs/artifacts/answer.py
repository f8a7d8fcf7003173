"""An artifact, or one file of an archive, as an answer."""

import asyncio
import hashlib
import mimetypes
import zipfile
from typing import IO

from aiohttp import hdrs, web

from api_server.ci.jobs.artifacts import queries
from api_server.ci.jobs.artifacts.queries import Artifact
from api_server.namespaces.projects.project import Project
from api_server.state.objects import OBJECTS, Objects
from api_server.web import context
from api_server.web.access import Role
from api_server.web.answers import attachment
from api_server.web.conditional import matches, not_modified
from api_server.web.errors import forbidden, not_found
from api_server.web.stored_objects import SAFETY, send_stored

_TYPES = {"zip": "application/zip", "gzip": "application/gzip", "raw": "application/octet-stream"}
_CHUNK = 256 * 1024


async def archive_of(request: web.Request, job_id: int) -> Artifact:
    """Raises 404 where the job has no archive, or none any more."""
    archive = await queries.find_artifact(context.database(request), job_id)
    if archive is None:
        raise not_found("Artifacts")
    return archive


def check_may_read(project: Project, archive: Artifact) -> None:
    """Raises 403 below Developer where the job's file says `artifacts:public: false`."""
    if not archive.public and project.role < Role.DEVELOPER:
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


async def send_member(request: web.Request, artifact: Artifact, path: str) -> web.StreamResponse:
    """One file of a zip archive, unpacked as it is sent. Raises 404 where there is none at `path`."""
    member = await asyncio.to_thread(_open_member, request.config_dict[OBJECTS], artifact.object_key, path)
    if member is None:
        raise not_found("File")
    file, size = member
    etag = f'"{hashlib.sha256(artifact.sha256 + path.encode()).hexdigest()}"'
    try:
        if matches(request, etag):
            return not_modified(SAFETY | {hdrs.ETAG: etag})
        name = path.rpartition("/")[2]
        headers = SAFETY | {
            hdrs.CONTENT_TYPE: mimetypes.guess_type(name)[0] or "application/octet-stream",
            hdrs.CONTENT_DISPOSITION: attachment(name),
            hdrs.CONTENT_LENGTH: str(size),
            hdrs.ETAG: etag,
        }
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        if request.method != "HEAD":
            while chunk := await asyncio.to_thread(file.read, _CHUNK):
                await response.write(chunk)
        await response.write_eof()
        return response
    finally:
        await asyncio.to_thread(file.close)


def _open_member(objects: Objects, key: str, path: str) -> tuple[IO[bytes], int] | None:
    """The file at `path` in the archive, and its size; blocks. None, too, where it is encrypted or packed in another
    way than `zipfile` knows (RuntimeError), where the archive was deleted a moment ago (FileNotFoundError), and where
    it is no zip or a damaged one (BadZipFile, or ValueError for names and offsets that make no sense)."""
    try:
        archive = zipfile.ZipFile(objects.open(key))
        found = archive.getinfo(path)
        return None if found.is_dir() else (archive.open(found), found.file_size)
    except (KeyError, RuntimeError, FileNotFoundError, zipfile.BadZipFile, ValueError):
        return None
