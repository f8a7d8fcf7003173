"""`/repository/commits/:sha/cherry_pick` and `/revert`."""

import attrs
from aiohttp import web

from api_server.code.repository import entities, picking
from api_server.code.repository.access import opened, url_of
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.web.answers import json_value
from api_server.web.params import Description
from api_server.web.routes import Role, Routes

routes = Routes()

_COMMIT = "/projects/{id}/repository/commits/{sha}"


@attrs.frozen(kw_only=True)
class Revert:
    id: str
    sha: str
    branch: str = attrs.field(metadata={"present": True})
    dry_run: bool = False


@attrs.frozen(kw_only=True)
class CherryPick(Revert):
    message: Description | None = None


@routes.post(f"{_COMMIT}/cherry_pick", access=project(Role.DEVELOPER, opens="repository"))
async def cherry_pick(request: web.Request, wanted: CherryPick, found: Project) -> web.Response:
    made = await picking.do(
        request,
        found,
        picking.CHERRY_PICK,
        wanted.sha,
        wanted.branch,
        message=wanted.message,
        dry_run=wanted.dry_run,
    )
    return await _answer(request, found, made)


@routes.post(f"{_COMMIT}/revert", access=project(Role.DEVELOPER, opens="repository"))
async def revert(request: web.Request, wanted: Revert, found: Project) -> web.Response:
    made = await picking.do(request, found, picking.REVERT, wanted.sha, wanted.branch, dry_run=wanted.dry_run)
    return await _answer(request, found, made)


async def _answer(request: web.Request, found: Project, made: str | None) -> web.Response:
    if made is None:
        return json_value({"dry_run": "success"})
    repository = await opened(request, found)
    return json_value(entities.commit(repository, made, url_of(request, found)), status=201)
