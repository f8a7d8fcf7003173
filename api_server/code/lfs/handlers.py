"""`/<path>.git/info/lfs/...`: the LFS batch API with basic transfers.

Who may fetch may download, who may push may upload: credentials, roles and paths are those of git over HTTP.
"""

import hashlib
import secrets
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from api_server.code.git_http.access import check_may_push, readable_project, writable_project
from api_server.code.lfs import queries
from api_server.code.lfs.answers import Links, lfs_errors, lfs_json, with_actions, with_error
from api_server.code.lfs.batch import Refusal, read_batch, read_pointer
from api_server.git.lfs_pointers import Pointer
from api_server.namespaces.projects.access import Project
from api_server.state.objects import CHUNK, OBJECTS
from api_server.web import context
from api_server.web.stored_objects import send_stored

_MISSING = "The object does not exist."


def setup(app: web.Application) -> None:
    base, oid = "/{path:.+}.git/info/lfs", "{oid:[0-9a-f]{64}}"
    app.router.add_post(f"{base}/objects/batch", lfs_errors(batch))
    app.router.add_get(f"{base}/objects/{oid}", lfs_errors(download))
    app.router.add_put(f"{base}/objects/{oid}/{{size:[0-9]{{1,18}}}}", lfs_errors(upload))
    app.router.add_post(f"{base}/verify", lfs_errors(verify))
    app.router.add_route("*", f"{base}/locks{{rest:(/.*)?}}", locks)


async def batch(request: web.Request) -> web.Response:
    """What has to be done with each object that the client wants to bring or to fetch."""
    project, who = await readable_project(request)
    wanted = read_batch(await request.read())
    if wanted.operation == "upload":
        check_may_push(project, who)
    answer = _to_upload if wanted.operation == "upload" else _to_download
    objects = await answer(request, project, wanted.objects)
    return lfs_json({"transfer": "basic", "objects": objects, "hash_algo": "sha256"})


async def _to_download(
    request: web.Request, project: Project, wanted: tuple[Pointer, ...]
) -> list[dict[str, Any]]:
    sizes = await queries.sizes(context.database(request), project.id, [each.oid for each in wanted])
    links = _links(request, project)
    return [
        with_actions(each, download=links.download(each))
        if sizes.get(each.oid) == each.size
        else with_error(each, 404, _MISSING)
        for each in wanted
    ]


async def _to_upload(
    request: web.Request, project: Project, wanted: tuple[Pointer, ...]
) -> list[dict[str, Any]]:
    sizes = await queries.sizes(context.database(request), project.id, [each.oid for each in wanted])
    links, limit = _links(request, project), context.settings(request).lfs_limit

    def answer(each: Pointer) -> dict[str, Any]:
        if sizes.get(each.oid) == each.size:
            return with_actions(each)
        if each.size > limit:
            return with_error(each, 422, _too_large(limit))
        return with_actions(each, upload=links.upload(each), verify=links.verify())

    return [answer(each) for each in wanted]


async def download(request: web.Request) -> web.StreamResponse:
    """The object, or the part of it that `Range` asks for."""
    project, _ = await readable_project(request)
    found = await queries.find_object(context.database(request), project.id, request.match_info["oid"])
    if found is None:
        raise web.HTTPNotFound(text=_MISSING)
    headers = {"Content-Type": "application/octet-stream", "Content-Disposition": "attachment"}
    objects = request.config_dict[OBJECTS]
    try:
        return await send_stored(request, objects, found.object_key, found.size, found.oid, headers)
    except FileNotFoundError:  # deleted since the row was read
        raise web.HTTPNotFound(text=_MISSING) from None


async def upload(request: web.Request) -> web.Response:
    """Stores the body, once it has turned out to have the size and the SHA-256 that it was announced with."""
    project, _ = await writable_project(request)
    announced = Pointer(request.match_info["oid"], int(request.match_info["size"]))
    limit = context.settings(request).lfs_limit
    if announced.size > limit:
        raise web.HTTPRequestEntityTooLarge(limit, announced.size, text=_too_large(limit))
    objects = request.config_dict[OBJECTS]
    key = f"projects/{project.id}/lfs/{secrets.token_hex(16)}"
    await objects.put(key, _checked(request, announced))
    added = False
    try:
        async with context.database(request).transaction() as transaction:
            added = await queries.add_object(
                transaction, project.id, announced.oid, size=announced.size, object_key=key
            )
    finally:
        if not added:  # somebody else has brought it, or the project is gone
            await objects.delete([key])
    return web.Response()


async def _checked(request: web.Request, announced: Pointer) -> AsyncIterator[bytes]:
    """The body as it comes. Raises 422 where it is not what was announced, so that nothing is stored."""
    digest, size = hashlib.sha256(), 0
    async for chunk in request.content.iter_chunked(CHUNK):
        size += len(chunk)
        if size > announced.size:
            break
        digest.update(chunk)
        yield chunk
    if (digest.hexdigest(), size) != (announced.oid, announced.size):
        raise Refusal(422, "The content is not what its oid and size say.")


async def verify(request: web.Request) -> web.Response:
    """Whether an object has arrived."""
    project, _ = await writable_project(request)
    wanted = read_pointer(await request.read())
    sizes = await queries.sizes(context.database(request), project.id, [wanted.oid])
    if sizes.get(wanted.oid) != wanted.size:
        raise web.HTTPNotFound(text=_MISSING)
    return lfs_json({})


async def locks(_request: web.Request) -> web.Response:
    """Files are not locked here: 501 makes git-lfs stop asking without a word to its user."""
    return lfs_json({"message": "This server does not lock files."}, 501)


def _links(request: web.Request, project: Project) -> Links:
    return Links(request, f"{context.settings(request).base_url}/{project.full_path}.git")


def _too_large(limit: int) -> str:
    return f"The object is larger than the {limit} bytes that this server takes."
