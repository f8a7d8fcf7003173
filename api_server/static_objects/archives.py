"""Archives of a commit: named as GitLab names them, built once, stored, and sent from there."""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import structlog
from aiohttp import hdrs, web

from api_server.code.repository.blobs import send_part
from api_server.git import archives, references
from api_server.git.archives import Archive
from api_server.git.errors import NotFoundError
from api_server.git.references import Resolved
from api_server.git.repositories import repositories
from api_server.namespaces.projects.project import Project
from api_server.static_objects.freshness import kept
from api_server.static_objects.raw import SAFETY
from api_server.web.answers import quotable
from api_server.web.conditional import matches
from api_server.web.errors import not_found
from api_server.web.ranges import wanted_part
from common.static_paths import ARCHIVE_FORMATS, StaticPath

log = structlog.get_logger(__name__)

_CHUNK = 256 * 1024
#: Changes when the way of packing does: a stored archive and its entity tag say which way it was made.
_PACKING = "1"
#: Nothing takes so long to be packed: what nobody has written to since then was left by a crash.
_UNFINISHED_SECONDS = 3600


class ArchiveStore:
    """Finished archives below `root`; each is built once, however many wait for it."""

    def __init__(self, root: Path, most_bytes: int) -> None:
        self._root = root
        self._most_bytes = most_bytes
        self._building: dict[Path, asyncio.Task[int]] = {}

    async def get(self, project_id: int, repository: Path, archive: Archive) -> Path:
        """The file of `archive`. Raises `NotFoundError`, or `GitError` where git fails."""
        name = hashlib.sha256(repr((_PACKING, archive)).encode()).hexdigest()
        file = self._root / str(project_id) / f"{name}.{archive.format}"
        if file.exists():
            os.utime(file)
            return file
        task = self._building.get(file)
        if task is None:
            file.parent.mkdir(parents=True, exist_ok=True)
            task = asyncio.create_task(archives.build(repository, archive, file))
            self._building[file] = task
            task.add_done_callback(lambda _: self._building.pop(file, None))
        await asyncio.shield(task)
        return file

    def remove_project(self, project_id: int) -> None:
        folder = self._root / str(project_id)
        for file in folder.glob("*"):
            file.unlink(missing_ok=True)
        if folder.exists():
            folder.rmdir()

    def shrink(self) -> None:
        """Removes what was not asked for the longest, down to the limit, and what a crash has left unfinished."""
        files = [(file, file.stat()) for file in self._root.glob("*/*")]
        if not files:
            return
        now = self._file_systems_now()
        total = sum(stat.st_size for _, stat in files)
        for file, stat in sorted(files, key=lambda item: item[1].st_mtime):
            unfinished = file.name.startswith(".") and now - stat.st_mtime > _UNFINISHED_SECONDS
            if total > self._most_bytes or unfinished:
                file.unlink(missing_ok=True)
                total -= stat.st_size

    def _file_systems_now(self) -> float:
        """What a file would be dated that is written now, perhaps by another machine's clock."""
        with tempfile.TemporaryFile(dir=self._root) as probe:
            return os.fstat(probe.fileno()).st_mtime


ARCHIVES = web.AppKey("archives", ArchiveStore)


@attrs.frozen
class Wanted:
    """An archive as the URL asks for it: what to pack, the name it is saved under, and the ref that was named."""

    archive: Archive
    file_name: str
    ref: str


async def serve(request: web.Request, path: StaticPath, project: Project) -> web.StreamResponse:
    """200, 206, or 304 before anything is packed. Raises 404 for an unknown ref, path or format."""
    try:
        return await _sent(request, project, _asked_for(request, path, project))
    except NotFoundError:
        raise web.HTTPNotFound(text="404 Not Found\n") from None


async def serve_to_client(
    request: web.Request, project: Project, *, ref: str, ending: str, folder: str
) -> web.StreamResponse:
    """As `serve`, for a client of the API, in the API's words; `ending` is like `.tar.gz`."""
    try:
        resolved = _resolved(request, project, ref)
        wanted = _named(
            project, resolved, _format(ending), folder, appends_sha=resolved.name != resolved.commit
        )
        return await _sent(request, project, wanted)
    except NotFoundError:
        raise not_found("File") from None


async def _sent(request: web.Request, project: Project, wanted: Wanted) -> web.StreamResponse:
    """Raises `NotFoundError`."""
    archive = wanted.archive
    digest = hashlib.sha256(repr(("archive", _PACKING, archive)).encode()).hexdigest()
    tag = f'"{digest[:32]}"'
    headers = SAFETY | kept(project, wanted.ref) | {hdrs.ETAG: tag}
    if matches(request, tag):
        return web.Response(status=304, headers=headers)
    store = request.config_dict[ARCHIVES]
    file = await store.get(project.id, repositories(request).path(project.id), archive)
    headers |= {
        hdrs.CONTENT_TYPE: "application/zip" if archive.format == "zip" else "application/octet-stream",
        hdrs.CONTENT_DISPOSITION: f'attachment; filename="{quotable(wanted.file_name)}"',
    }
    part = wanted_part(request, file.stat().st_size, tag)
    return await send_part(request, _read(file), part, headers | part.headers)


def _asked_for(request: web.Request, path: StaticPath, project: Project) -> Wanted:
    """Raises `NotFoundError`."""
    asked = path.archive
    if asked is None:
        raise NotFoundError(path.rest)
    ref = _resolved(request, project, asked.ref)
    query = dict(path.query)
    inner = query.get("path", "")
    named_plainly = asked.name == _plain_name(project, ref)
    appends_sha = _appends_sha(query.get("append_sha"), ref, named_plainly)
    return _named(project, ref, asked.format, inner, appends_sha=appends_sha)


def _resolved(request: web.Request, project: Project, ref: str) -> Resolved:
    """Raises `NotFoundError`, also where there is no repository yet."""
    exists = repositories(request).exists(project.id)
    found = references.resolve(repositories(request).open(project.id), ref) if exists else None
    if found is None:
        raise NotFoundError(ref)
    return found


def _format(ending: str) -> str:
    """Raises `NotFoundError`."""
    if ending not in ARCHIVE_FORMATS:
        raise NotFoundError(ending)
    return ARCHIVE_FORMATS[ending]


def _named(project: Project, ref: Resolved, format_: str, inner: str, *, appends_sha: bool) -> Wanted:
    """The archive of a ref, or of the folder `inner` of it, under GitLab's name."""
    prefix = _plain_name(project, ref)
    if appends_sha:
        prefix += f"-{ref.commit}"
    if inner:
        prefix += f"-{inner.replace('/', '-')}"
    archive = Archive(commit=ref.commit, format=format_, prefix=prefix, path=inner)  # type: ignore[arg-type]
    return Wanted(archive, f"{prefix}.{format_}", ref.name)


def _plain_name(project: Project, ref: Resolved) -> str:
    return f"{project.path}-{ref.name.replace('/', '-')}"


def _appends_sha(wish: str | None, ref: Resolved, named_plainly: bool) -> bool:
    """As asked; otherwise where the ref is not the SHA itself and the URL does not name the file without it."""
    if wish is not None:
        return wish == "true"
    return ref.name != ref.commit and not named_plainly


async def _read(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as opened:
        while chunk := await asyncio.to_thread(opened.read, _CHUNK):
            yield chunk
