"""The bytes of LFS objects: kept in the object store, known by rows of their project."""

import hashlib
import secrets
from collections.abc import AsyncIterator

from aiohttp import web

from api_server.code.lfs import queries
from api_server.code.lfs.batch import Refusal
from api_server.git.lfs_pointers import Pointer
from api_server.namespaces.resources import Project
from api_server.state.objects import OBJECTS
from api_server.web import context, request_data
from api_server.web.answers import send_stored

MISSING = "The object does not exist."


async def send(request: web.Request, project: Project, oid: str) -> web.StreamResponse:
    """Answers with the object, or the part of it that `Range` asks for. Raises 404."""
    found = await queries.find_object(context.database(request), project.id, oid)
    if found is None:
        raise web.HTTPNotFound(text=MISSING)
    headers = {"Content-Type": "application/octet-stream", "Content-Disposition": "attachment"}
    objects = request.config_dict[OBJECTS]
    try:
        return await send_stored(request, objects, found.object_key, found.size, oid, headers)
    except FileNotFoundError:  # deleted since the row was read
        raise web.HTTPNotFound(text=MISSING) from None


async def store(request: web.Request, project: Project, announced: Pointer) -> None:
    """Keeps the request's body as the announced object. Raises 422 where it is another one.

    Where it is not known whether the row was written, the object stays: the sweep removes what no row names.
    """
    objects = request.config_dict[OBJECTS]
    key = f"projects/{project.id}/lfs/{secrets.token_hex(16)}"
    await objects.put(key, _checked(request, announced))
    async with context.database(request).transaction() as transaction:
        added = await queries.add_object(
            transaction, project.id, announced.oid, size=announced.size, object_key=key
        )
    if not added:  # somebody else has brought it, or the project is gone
        await objects.discard([key])


async def _checked(request: web.Request, announced: Pointer) -> AsyncIterator[bytes]:
    """The body as it comes. Raises 422 where it is not what was announced, so that nothing is stored."""
    digest, size = hashlib.sha256(), 0
    async for chunk in request_data.pieces(request):
        size += len(chunk)
        if size > announced.size:
            break
        digest.update(chunk)
        yield chunk
    if (digest.hexdigest(), size) != (announced.oid, announced.size):
        raise Refusal(422, "The content is not what its oid and size say.")
