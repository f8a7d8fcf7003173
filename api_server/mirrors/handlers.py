"""Remote mirrors (endpoints 19-24), their public keys."""

import attrs
from aiohttp import web

from api_server.mirrors import changes, queries, states
from api_server.mirrors.configuration import AuthMethod, Wishes, configuration_of
from api_server.namespaces.projects.access import find_project, project
from api_server.namespaces.redirects import id_in
from api_server.state.database import Row, Transaction
from api_server.web import context, tiers
from api_server.web.access import Role
from api_server.web.answers import json_text, json_value, no_content
from api_server.web.authorship import author
from api_server.web.errors import ApiError, invalid, record_not_found
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import UNSET, Unset, parse
from api_server.web.routes import Routes

routes = Routes()

REGEX = tiers.Feature("Mirror branch regex", "premium")
_MIRROR = "/projects/{id}/remote_mirrors/{mirror_id}"


@attrs.frozen(kw_only=True)
class ListMirrors(Paginated):
    id: str


@attrs.frozen(kw_only=True)
class MirrorId:
    """`mirror_id` is a text: what is no number is 404, not 400."""

    id: str
    mirror_id: str


@attrs.frozen(kw_only=True)
class CreateMirror(Wishes):
    id: str
    url: str
    auth_method: AuthMethod | Unset = UNSET


@attrs.frozen(kw_only=True)
class UpdateMirror(Wishes):
    id: str
    mirror_id: str


@routes.get("/projects/{id}/remote_mirrors", access=project(Role.MAINTAINER))
async def list_mirrors(request: web.Request) -> web.Response:
    """19; beyond GitLab also by keyset."""
    wanted = await parse(request, ListMirrors)
    page = wanted_page(wanted, queries.LISTING, default_sort="asc")
    found = await find_project(request, wanted.id)
    return await paginated(
        request, page, await queries.list_mirrors(context.database(request), page, found.id)
    )


@routes.get(_MIRROR, access=project(Role.MAINTAINER))
async def show_mirror(request: web.Request) -> web.Response:
    """20."""
    wanted = await parse(request, MirrorId)
    found = await find_project(request, wanted.id)
    shown = await queries.show_mirror(context.database(request), found.id, _number(wanted.mirror_id))
    if shown is None:
        raise record_not_found()
    return json_text(shown)


@routes.get(f"{_MIRROR}/public_key", access=project(Role.MAINTAINER))
async def show_public_key(request: web.Request) -> web.Response:
    """What the target has to accept from a mirror that logs in by key over SSH."""
    wanted = await parse(request, MirrorId)
    found = await find_project(request, wanted.id)
    key = await queries.public_key(context.database(request), found.id, _number(wanted.mirror_id))
    if key is None:
        raise record_not_found()
    return json_value({"public_key": key})


@routes.post("/projects/{id}/remote_mirrors", access=project(Role.MAINTAINER))
async def create_mirror(request: web.Request) -> web.Response:
    """21. The target is not contacted yet."""
    wanted = await parse(request, CreateMirror)
    found = await find_project(request, wanted.id)
    _require_regex(request, wanted)
    await changes.check(request, found, wanted)
    async with context.database(request).transaction() as transaction:
        shown = await changes.create(request, transaction, found, author(request), wanted)
    return json_text(shown, status=201)


@routes.put(_MIRROR, access=project(Role.MAINTAINER))
async def update_mirror(request: web.Request) -> web.Response:
    """22; beyond GitLab also the URL with its credentials."""
    wanted = await parse(request, UpdateMirror)
    found = await find_project(request, wanted.id)
    _require_regex(request, wanted)
    async with context.database(request).transaction() as transaction:
        mirror = await _locked(transaction, found.id, wanted.mirror_id)
    await changes.check(request, found, wanted, configuration_of(mirror))
    async with context.database(request).transaction() as transaction:
        mirror = await _locked(transaction, found.id, wanted.mirror_id)
        shown = await changes.update(request, transaction, found, author(request), mirror, wanted)
    return json_text(shown)


@routes.post(f"{_MIRROR}/sync", access=project(Role.MAINTAINER))
async def sync_mirror(request: web.Request) -> web.Response:
    """23. While a run is on its way there is nothing to queue."""
    wanted = await parse(request, MirrorId)
    found = await find_project(request, wanted.id)
    async with context.database(request).transaction() as transaction:
        mirror = await _locked(transaction, found.id, wanted.mirror_id)
        if not mirror.works:
            raise invalid("Cannot proceed with the push mirroring. Please verify your mirror configuration.")
        if mirror.update_status != "started":
            await states.schedule(transaction, mirror.id)
    return no_content()


@routes.delete(_MIRROR, access=project(Role.MAINTAINER))
async def delete_mirror(request: web.Request) -> web.Response:
    """24; 412 where its configuration changed since `If-Unmodified-Since`."""
    wanted = await parse(request, MirrorId)
    found = await find_project(request, wanted.id)
    async with context.database(request).transaction() as transaction:
        mirror = await _locked(transaction, found.id, wanted.mirror_id)
        since = request.if_unmodified_since
        if since is not None and mirror.updated_at.replace(microsecond=0) > since:
            raise ApiError(412, {"message": "412 Precondition Failed"})
        await changes.delete(transaction, found, author(request), mirror)
    return no_content()


async def _locked(transaction: Transaction, project_id: int, mirror_id: str) -> Row:
    mirror = await queries.lock_mirror(transaction, project_id, _number(mirror_id))
    if mirror is None:
        raise record_not_found()
    return mirror


def _number(mirror_id: str) -> int:
    """-1, which no mirror has, for what is no number."""
    number = id_in(mirror_id)
    return -1 if number is None else number


def _require_regex(request: web.Request, wishes: Wishes) -> None:
    if wishes.sets_a_regex and (refused := tiers.refusal(REGEX, context.settings(request))):
        raise refused
