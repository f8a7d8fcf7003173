"""Archives of commits under GitLab's names: built once, stored, and sent from the store."""

import asyncio
import functools
import hashlib
import os
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import suppress
from typing import BinaryIO

import attrs
from aiohttp import hdrs, web

from api_server.code.reading import counted_for
from api_server.git import references
from api_server.git.errors import NotFoundError
from api_server.git.references import Resolved
from api_server.git.repositories import REPOSITORIES
from api_server.git.trees import Archive
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.static_objects.archive_builds import ARCHIVES, TooLargeError, Waiter
from api_server.static_objects.raw import SAFETY, freshness
from api_server.web import context
from api_server.web.answers import (
    attachment,
    cut_to,
    has_left,
    matches_etag,
    not_modified,
    requested_part,
    send_part,
)
from api_server.web.errors import REASONS, ApiError, not_found
from api_server.web.routes import caller_or_anonymous
from common import static_paths
from common.static_paths import ARCHIVE_FORMATS, StaticPath

_CHUNK = 256 * 1024
#: The version of the packing. It is part of an archive's stored name and entity tag; change it with the packing.
_PACKING = "1"


@attrs.frozen
class RequestedArchive:
    """An archive that a URL names: its contents, the file name for the client, and the resolved ref."""

    archive: Archive
    file_name: str
    ref: Resolved


async def serve(
    request: web.Request, path: StaticPath, project: Project, user_id: int | None, *, from_storage: bool
) -> web.StreamResponse:
    """Answer with the archive (200 or 206), with 304 before anything is packed, or with an uncacheable 413 if it is too
    large. Raise 404 for an unknown ref, path or format, and `TooBusy`."""
    try:
        askers = counted_for(caller_or_anonymous(request), user_id, from_storage=from_storage)
        return await _send(request, project, _resolve(context.services(request), path, project), askers)
    except NotFoundError:
        raise web.HTTPNotFound(text="404 Not Found\n") from None
    except TooLargeError as problem:
        headers = {hdrs.CACHE_CONTROL: "no-store"}
        return web.Response(status=413, text=f"413: {REASONS[413]}: {problem}\n", headers=headers)


async def serve_to_client(
    request: web.Request, project: Project, user_id: int, *, ref: str, ending: str, folder: str
) -> web.StreamResponse:
    """Answer a client of the API as `serve` does, with the API's error messages. `ending` is like `.tar.gz`."""
    try:
        resolved = _resolved(context.services(request), project, ref)
        archive = _archive_of(
            project, resolved, _format(ending), folder, appends_sha=resolved.name != resolved.commit
        )
        return await _send(request, project, archive, counted_for(caller_or_anonymous(request), user_id))
    except NotFoundError:
        raise not_found("File") from None
    except TooLargeError as problem:
        raise ApiError(413, {"message": f"413 {REASONS[413]} - {problem}"}) from None


async def _send(
    request: web.Request, project: Project, requested: RequestedArchive, limit_keys: Sequence[Hashable]
) -> web.StreamResponse:
    """Send the archive (200, 206) or answer with 304. Raise `NotFoundError`, `TooLargeError` and `TooBusy`."""
    services = context.services(request)
    archive = requested.archive
    digest = hashlib.sha256(repr(("archive", _PACKING, archive)).encode()).hexdigest()
    tag = f'"{digest[:32]}"'
    headers = SAFETY | freshness(project, requested.ref) | {hdrs.ETAG: tag}
    if matches_etag(request, tag):
        return not_modified(headers)
    store = services[ARCHIVES]
    name = hashlib.sha256(repr((_PACKING, archive)).encode()).hexdigest()
    file = store.files.path(project.id, f"{name}.{archive.format}")
    keys = [("project", project.id), *limit_keys]
    waiter = Waiter(keys=keys, has_disconnected=functools.partial(has_left, request))
    async with store.opened(services[REPOSITORIES].path(project.id), archive, file, waiter) as opened:
        headers |= {
            hdrs.CONTENT_TYPE: "application/zip" if archive.format == "zip" else "application/octet-stream",
            hdrs.CONTENT_DISPOSITION: attachment(requested.file_name, briefly=True),
        }
        part = requested_part(request, os.fstat(opened.fileno()).st_size, tag)
        return await send_part(request, cut_to(_read(opened), part), part, headers)


def _resolve(services: Services, path: StaticPath, project: Project) -> RequestedArchive:
    """Return the archive that the path names. Raise `NotFoundError`."""
    requested, ref = _first_existing(services, path, project)
    query = dict(path.query)
    inner = query.get("path", "")
    is_plain = requested.name == _plain_name(project, ref)
    appends_sha = _appends_sha(query.get("append_sha"), ref, is_plain)
    return _archive_of(project, ref, requested.format, inner, appends_sha=appends_sha)


def _first_existing(
    services: Services, path: StaticPath, project: Project
) -> tuple[static_paths.Archive, Resolved]:
    """Return the first reading of the path whose ref exists, with that ref. Raise `NotFoundError`."""
    for archive in path.archives:
        with suppress(NotFoundError):
            return archive, _resolved(services, project, archive.ref)
    raise NotFoundError(path.rest)


def _resolved(services: Services, project: Project, ref: str) -> Resolved:
    """Return the resolved ref. Raise `NotFoundError`, also if there is no repository yet."""
    exists = services[REPOSITORIES].exists(project.id)
    resolved = references.resolve(services[REPOSITORIES].open(project.id), ref) if exists else None
    if resolved is None:
        raise NotFoundError(ref)
    return resolved


def _format(ending: str) -> str:
    """Return the format of archives with that ending. Raise `NotFoundError`."""
    if ending not in ARCHIVE_FORMATS:
        raise NotFoundError(ending)
    return ARCHIVE_FORMATS[ending]


def _archive_of(
    project: Project, ref: Resolved, format_: str, inner: str, *, appends_sha: bool
) -> RequestedArchive:
    """Return the archive of a ref, or of its folder `inner`, under GitLab's name."""
    prefix = _plain_name(project, ref)
    if appends_sha:
        prefix += f"-{ref.commit}"
    if inner:
        prefix += f"-{inner.replace('/', '-')}"
    archive = Archive(commit=ref.commit, format=format_, prefix=prefix, path=inner)  # type: ignore[arg-type]
    return RequestedArchive(archive, f"{prefix}.{format_}", ref)


def _plain_name(project: Project, ref: Resolved) -> str:
    return f"{project.path}-{ref.name.replace('/', '-')}"


def _appends_sha(requested: str | None, ref: Resolved, named_plainly: bool) -> bool:
    """Return the requested value; without one, True unless the ref is the SHA or the URL names the file without it."""
    if requested is not None:
        return requested == "true"
    return ref.name != ref.commit and not named_plainly


async def _read(file: BinaryIO) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(file.read, _CHUNK):
        yield chunk
