"""One file of a commit, as users and edges get it."""

import hashlib

from aiohttp import hdrs, web

from api_server.code.reading import streaming
from api_server.code.repository import blobs
from api_server.git import references, trees
from api_server.git.references import Resolved
from api_server.git.repositories import Repository, repositories
from api_server.git.trees import Entry
from api_server.namespaces.resources import Project
from api_server.static_objects.access import Reader
from api_server.static_objects.content_types import Label, label
from api_server.static_objects.freshness import kept
from api_server.web.answers import attachment
from common.static_paths import StaticPath

#: Users made these bytes: nothing in them may run, and their address (with a token, perhaps) stays here.
SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


async def serve(
    request: web.Request, path: StaticPath, project: Project, reader: Reader, *, from_storage: bool
) -> web.StreamResponse:
    """200, 206, or 304 before anything is read. Raises 404 for an unknown ref or path."""
    repository, ref, entry = _find(request, path, project)
    digest = hashlib.sha256(f"raw {entry.id}".encode()).hexdigest()
    headers = SAFETY | kept(project, ref) | {hdrs.ETAG: f'"{digest[:32]}"'}
    inline = dict(path.query).get("inline") != "false"
    place = streaming(request, user_id=reader.id, from_storage=from_storage)
    return await blobs.send(
        request, repository, entry, headers, place, lambda head: _labelled(label(head), entry, inline)
    )


def _find(request: web.Request, path: StaticPath, project: Project) -> tuple[Repository, Resolved, Entry]:
    if not repositories(request).exists(project.id):
        raise web.HTTPNotFound(text="404 Not Found\n")
    repository = repositories(request).open(project.id)
    split = references.split_ref_and_path(repository, path.rest)
    entry = trees.find_entry(repository, split[0].commit, split[1]) if split else None
    if split is None or entry is None or not entry.is_blob:
        raise web.HTTPNotFound(text="404 Not Found\n")
    return repository, split[0], entry


def _labelled(found: Label, entry: Entry, wants_inline: bool) -> dict[str, str]:
    """What the bytes are, and whether they are shown or saved: never shown where they should be saved."""
    name = entry.path.rpartition("/")[2]
    if found.inline and wants_inline and not name.lower().endswith(".xhtml"):
        disposition = "inline"
    else:
        disposition = attachment(name)
    return {hdrs.CONTENT_TYPE: found.media_type, hdrs.CONTENT_DISPOSITION: disposition}
