"""Remote mirrors (endpoints 19 to 24) and their public keys."""

import attrs
from aiohttp import web

from api_server.mirrors import changes, queries, running
from api_server.mirrors.configuration import AuthMethod, MirrorUpdate
from api_server.namespaces.access import id_in, project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.web.answers import json_text, json_value, no_content, require_unmodified
from api_server.web.auth import Actor
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import UNSET, Unset, Url
from api_server.web.routes import License, Role, Routes, require_license

routes = Routes()

REGEX = License("Mirror branch regex", "premium")
_MIRROR = "/projects/{id}/remote_mirrors/{mirror_id}"


@attrs.frozen(kw_only=True)
class ListMirrors(Paginated):
    id: str


@attrs.frozen(kw_only=True)
class MirrorId:
    """A mirror's id, taken as text: one that is not a number is answered with 404, one above 64 bits with 400."""

    id: str
    mirror_id: str = attrs.field(metadata={"takes": int})


@attrs.frozen(kw_only=True)
class CreateMirror(MirrorUpdate):
    id: str
    url: Url
    auth_method: AuthMethod | Unset = UNSET


@attrs.frozen(kw_only=True)
class UpdateMirror(MirrorUpdate):
    id: str
    mirror_id: str = attrs.field(metadata={"takes": int})


@routes.get("/projects/{id}/remote_mirrors", access=project(Role.MAINTAINER), answers="200 [RemoteMirror]")
async def list_mirrors(
    request: web.Request, services: Services, params: ListMirrors, project: Project
) -> web.Response:
    """Endpoint 19. List the project's mirrors. Keyset pagination is available in addition to GitLab's."""
    page = requested_page(params, queries.LISTING, default_sort="asc")
    rows = await queries.list_mirrors(services.database, page, project.id)
    return await paginated(request, page, rows)


@routes.get(_MIRROR, access=project(Role.MAINTAINER), answers="200 RemoteMirror")
async def show_mirror(services: Services, params: MirrorId, project: Project) -> web.Response:
    """Endpoint 20. Show a mirror. The credentials in its URL are masked."""
    entity = await queries.show(services.database, project.id, _number(params.mirror_id))
    return json_text(entity)


@routes.get(f"{_MIRROR}/public_key", access=project(Role.MAINTAINER), answers="200 PublicKey")
async def show_public_key(services: Services, params: MirrorId, project: Project) -> web.Response:
    """Show the public key with which the mirror logs in to its target over SSH."""
    key = await queries.public_key(services.database, project.id, _number(params.mirror_id))
    return json_value({"public_key": key})


@routes.post("/projects/{id}/remote_mirrors", access=project(Role.MAINTAINER), answers="201 RemoteMirror")
async def create_mirror(
    services: Services, actor: Actor, params: CreateMirror, project: Project
) -> web.Response:
    """Endpoint 21. Create a mirror. Its target is not contacted yet."""
    _require_regex(services, params)
    await changes.check(services, project, params)
    async with services.database.transaction() as transaction:
        entity = await changes.create(services, actor, transaction, project, params)
    return json_text(entity, status=201)


@routes.put(_MIRROR, access=project(Role.MAINTAINER), answers="200 RemoteMirror")
async def update_mirror(
    services: Services, actor: Actor, params: UpdateMirror, project: Project
) -> web.Response:
    """Endpoint 22. Update a mirror. Unlike in GitLab, its URL and credentials can be changed too."""
    _require_regex(services, params)
    before = await queries.find(services.database, project.id, _number(params.mirror_id))
    await changes.check(services, project, params, before)
    async with services.database.transaction() as transaction:
        entity = await changes.update(services, actor, transaction, project, before.id, params)
    return json_text(entity)


@routes.post(f"{_MIRROR}/sync", access=project(Role.MAINTAINER), answers="204")
async def sync_mirror(services: Services, params: MirrorId, project: Project) -> web.Response:
    """Endpoint 23. Queue a run of a mirror; 400 if the mirror is disabled."""
    async with services.database.transaction() as transaction:
        mirror = await queries.lock(transaction, project.id, _number(params.mirror_id))
        await running.run_for_caller(transaction, project, mirror)
    return no_content()


@routes.delete(_MIRROR, access=project(Role.MAINTAINER), answers="204")
async def delete_mirror(
    request: web.Request, services: Services, actor: Actor, params: MirrorId, project: Project
) -> web.Response:
    """Endpoint 24. Delete a mirror. The refs that it has pushed remain at the target."""
    async with services.database.transaction() as transaction:
        mirror = await queries.lock(transaction, project.id, _number(params.mirror_id))
        require_unmodified(request, mirror.updated_at)
        await changes.delete(actor, transaction, project, mirror)
    return no_content()


def _number(mirror_id: str) -> int:
    """Return the id as a number, or -1, which is never an id, if it is not a number."""
    number = id_in(mirror_id, "mirror_id")
    return -1 if number is None else number


def _require_regex(services: Services, requested: MirrorUpdate) -> None:
    if requested.sets_a_regex:
        require_license(REGEX, services.settings)
