"""`/<path>.git/info/lfs/...`: the LFS batch API with basic transfers.

Callers who may fetch may download, and callers who may push may upload. Credentials, roles and paths are those of git
over HTTP.
"""

from typing import Any

from aiohttp import web

from api_server.accounts.path_rules import PROJECT_PATH
from api_server.code import lfs, lfs_queries
from api_server.code.git_access import check_may_push, readable_project, writable_project
from api_server.code.lfs import (
    MISSING,
    Links,
    lfs_errors,
    lfs_json,
    read_batch,
    read_pointer,
    with_actions,
    with_error,
)
from api_server.code.quotas import QUOTAS
from api_server.git.lfs_pointers import Pointer
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.web import request_data
from api_server.web.context import with_services


def setup(app: web.Application) -> None:
    base, oid = f"/{{path:{PROJECT_PATH}}}.git/info/lfs", "{oid:[0-9a-f]{64}}"
    app.router.add_post(f"{base}/objects/batch", lfs_errors(with_services(batch)))
    app.router.add_get(f"{base}/objects/{oid}", lfs_errors(with_services(download)))
    app.router.add_put(f"{base}/objects/{oid}/{{size:[0-9]{{1,18}}}}", lfs_errors(with_services(upload)))
    app.router.add_post(f"{base}/verify", lfs_errors(with_services(verify)))
    app.router.add_route("*", f"{base}/locks{{rest:(/.*)?}}", locks)


async def batch(request: web.Request, services: Services) -> web.Response:
    """Answer a batch request: list an action for each object that the client wants to upload or download."""
    project, actor = await readable_project(request, services)
    batch_request = read_batch(await request_data.read(request, lfs.MAX_REQUEST))
    if batch_request.operation == "upload":
        check_may_push(project, actor)
    sizes = await lfs_queries.sizes(
        services.database, project.id, [item.oid for item in batch_request.objects]
    )
    if batch_request.operation == "upload":
        missing = sum(item.size for item in batch_request.objects if sizes.get(item.oid) != item.size)
        await services[QUOTAS].check(services.database, project.id, missing)
    links, limit = _links(request, services, project), services.settings.lfs_limit
    objects = [
        _answer(batch_request.operation, item, links, limit, is_here=sizes.get(item.oid) == item.size)
        for item in batch_request.objects
    ]
    return lfs_json({"transfer": "basic", "objects": objects, "hash_algo": "sha256"})


def _answer(operation: str, pointer: Pointer, links: Links, limit: int, *, is_here: bool) -> dict[str, Any]:
    if operation == "download":
        if not is_here:
            return with_error(pointer, 404, MISSING)
        return with_actions(pointer, download=links.download(pointer))
    if is_here:
        return with_actions(pointer)
    if pointer.size > limit:
        return with_error(pointer, 422, _too_large(limit))
    return with_actions(pointer, upload=links.upload(pointer), verify=links.verify())


async def download(request: web.Request, services: Services) -> web.StreamResponse:
    """Download an object, or the part of it that `Range` requests."""
    project, _ = await readable_project(request, services)
    return await lfs.send_object(request, services, project, request.match_info["oid"])


async def upload(request: web.Request, services: Services) -> web.Response:
    """Store the body as an object if it has the announced size and SHA-256."""
    project, _ = await writable_project(request, services)
    announced = Pointer(request.match_info["oid"], int(request.match_info["size"]))
    limit = services.settings.lfs_limit
    if announced.size > limit:
        raise web.HTTPRequestEntityTooLarge(limit, announced.size, text=_too_large(limit))
    quotas = services[QUOTAS]
    async with quotas.arriving(services.database, project.id, announced.size):
        await lfs.store_object(request, services, project, announced)
    return web.Response()


async def verify(request: web.Request, services: Services) -> web.Response:
    """Check that an object has arrived. Raise 404 if it has not."""
    project, _ = await writable_project(request, services)
    pointer = read_pointer(await request_data.read(request, lfs.MAX_REQUEST))
    sizes = await lfs_queries.sizes(services.database, project.id, [pointer.oid])
    if sizes.get(pointer.oid) != pointer.size:
        raise web.HTTPNotFound(text=MISSING)
    return lfs_json({})


async def locks(_request: web.Request) -> web.Response:
    """Refuse to lock files. After a 501, git-lfs stops asking and does not mention it to its user."""
    return lfs_json({"message": "This server does not lock files."}, 501)


def _links(request: web.Request, services: Services, project: Project) -> Links:
    return Links(request, f"{services.settings.base_url}/{project.full_path}.git")


def _too_large(limit: int) -> str:
    return f"The object is larger than the {limit} bytes that this server takes."
