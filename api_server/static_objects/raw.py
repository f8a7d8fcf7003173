"""One file of a commit, as users and edges get it."""

import hashlib
from collections.abc import AsyncIterator

import pygit2
from aiohttp import hdrs, web

from api_server.git import files, references
from api_server.git.files import Entry
from api_server.git.repositories import repositories
from api_server.namespaces.projects.project import Project
from api_server.static_objects.content_types import SNIFFED_BYTES, Label, label
from api_server.static_objects.freshness import kept
from api_server.web.answers import attachment
from api_server.web.conditional import matches
from api_server.web.ranges import wanted_part
from common.static_paths import StaticPath

#: Users made these bytes: nothing in them may run, and their address (with a token, perhaps) stays here.
SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


async def serve(request: web.Request, path: StaticPath, project: Project) -> web.StreamResponse:
    """200, 206, or 304 before anything is read. Raises 404 for an unknown ref or path."""
    repository, ref, entry = _find(request, path, project)
    digest = hashlib.sha256(f"raw {entry.id}".encode()).hexdigest()
    tag = f'"{digest[:32]}"'
    headers = SAFETY | kept(project, ref) | {hdrs.ETAG: tag}
    if matches(request, tag):
        return web.Response(status=304, headers=headers)
    async with files.stream(repository, entry) as chunks:
        head = await _head(chunks)
        headers |= _labelled(label(head[:SNIFFED_BYTES]), entry, dict(path.query).get("inline") != "false")
        return await send(request, head, chunks, entry.size or 0, headers)


def _find(request: web.Request, path: StaticPath, project: Project) -> tuple[pygit2.Repository, str, Entry]:
    if not repositories(request).exists(project.id):
        raise web.HTTPNotFound(text="404 Not Found\n")
    repository = repositories(request).open(project.id)
    split = references.split_ref_and_path(repository, path.rest)
    entry = files.find(repository, split[0].commit, split[1]) if split else None
    if split is None or entry is None or not entry.is_blob:
        raise web.HTTPNotFound(text="404 Not Found\n")
    return repository, split[0].name, entry


def _labelled(found: Label, entry: Entry, wants_inline: bool) -> dict[str, str]:
    """What the bytes are, and whether they are shown or saved: never shown where they should be saved."""
    name = entry.path.rpartition("/")[2]
    if found.inline and wants_inline and not name.lower().endswith(".xhtml"):
        disposition = "inline"
    else:
        disposition = attachment(name)
    return {hdrs.CONTENT_TYPE: found.media_type, hdrs.CONTENT_DISPOSITION: disposition}


async def _head(chunks: AsyncIterator[bytes]) -> bytes:
    head = b""
    while len(head) < SNIFFED_BYTES:
        chunk = await anext(chunks, None)
        if chunk is None:
            break
        head += chunk
    return head


async def send(
    request: web.Request, head: bytes, chunks: AsyncIterator[bytes], size: int, headers: dict[str, str]
) -> web.StreamResponse:
    """`head` and `chunks`, `size` bytes in all, or the range of them that was asked for."""
    part = wanted_part(request, size, headers[hdrs.ETAG])
    if len(head) == size:
        body = head[part.start : part.end]
        return web.Response(status=part.status, body=body, headers=headers | part.headers)
    response = web.StreamResponse(status=part.status, headers=headers | part.headers)
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    position = 0
    async for chunk in _joined(head, chunks):
        wanted = chunk[max(0, part.start - position) : max(0, part.end - position)]
        position += len(chunk)
        if wanted:
            await response.write(wanted)
        if position >= part.end:
            break
    await response.write_eof()
    return response


async def _joined(head: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for chunk in chunks:
        yield chunk
