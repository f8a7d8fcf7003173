"""`/projects/:id/releases/:tag_name/assets/links` (supporting resource), and where direct paths lead."""

from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.outbound.destinations import written_url
from api_server.releases import entities, link_changes, link_queries, queries
from api_server.releases.handlers import NewLink, OneRelease
from api_server.releases.links import LinkType
from api_server.releases.queries import Release
from api_server.web import context
from api_server.web.answers import json_value
from api_server.web.errors import record_not_found
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import Name, Url
from api_server.web.routes import Role, Routes

routes = Routes()

_LINKS = "/projects/{id}/releases/{tag_name}/assets/links"
_LINK = _LINKS + "/{link_id}"


@attrs.frozen(kw_only=True)
class ListLinks(Paginated):
    id: str
    tag_name: str


@attrs.frozen(kw_only=True)
class OneLink(OneRelease):
    link_id: int


@attrs.frozen(kw_only=True)
class CreateLink(NewLink):
    id: str
    tag_name: str


@attrs.frozen(kw_only=True)
class UpdateLink(OneLink):
    name: Name | None = None
    url: Url | None = None
    direct_asset_path: str | None = None
    filepath: str | None = None
    link_type: LinkType | None = None

    def __attrs_post_init__(self) -> None:
        if not (self.name or self.url):
            raise ValueError("name, url are missing, at least one parameter must be provided")

    @property
    def changed(self) -> dict[str, object]:
        """Fields of a link that get other values."""
        sent = {
            "name": self.name,
            "url": self.url,
            "filepath": self.direct_asset_path or self.filepath,
            "link_type": self.link_type,
        }
        return {field: value for field, value in sent.items() if value}


@attrs.frozen(kw_only=True)
class DirectPath(OneRelease):
    path: str


@routes.get(_LINKS, access=project(opens="repository"), takes_job_token=True)
async def list_links(request: web.Request, wanted: ListLinks, found: Project) -> web.Response:
    """The newest first."""
    release = await _release(request, found, wanted.tag_name)
    page = wanted_page(wanted, link_queries.LISTING)
    listed = await link_queries.list_links(context.database(request), page, release.id)
    shown = [entities.link(request, found, release.tag, row) for row in orjson.loads(listed.body)]
    return await paginated(request, page, attrs.evolve(listed, body=orjson.dumps(shown).decode()))


@routes.get(_LINK, access=project(opens="repository"), takes_job_token=True)
async def show_link(request: web.Request, wanted: OneLink, found: Project) -> web.Response:
    release = await _release(request, found, wanted.tag_name)
    row = await link_queries.show_link(context.database(request), release.id, wanted.link_id)
    return _answer(request, found, release.tag, row)


@routes.post(_LINKS, access=project(Role.DEVELOPER, opens="repository", changes=True), takes_job_token=True)
async def create_link(request: web.Request, wanted: CreateLink, found: Project) -> web.Response:
    row = await link_changes.add(request, found, wanted.tag_name, wanted.link)
    return _answer(request, found, wanted.tag_name, row, status=201)


@routes.put(_LINK, access=project(Role.DEVELOPER, opens="repository", changes=True), takes_job_token=True)
async def update_link(request: web.Request, wanted: UpdateLink, found: Project) -> web.Response:
    row = await link_changes.update(request, found, wanted.tag_name, wanted.link_id, wanted.changed)
    return _answer(request, found, wanted.tag_name, row)


@routes.delete(_LINK, access=project(Role.DEVELOPER, opens="repository", changes=True), takes_job_token=True)
async def delete_link(request: web.Request, wanted: OneLink, found: Project) -> web.Response:
    """Answers what it was."""
    row = await link_changes.remove(request, found, wanted.tag_name, wanted.link_id)
    return _answer(request, found, wanted.tag_name, row)


@routes.get(
    "/projects/{id}/releases/{tag_name}/downloads/{path:(?s:.+)}",
    access=project(opens="repository"),
    takes_job_token=True,
)
async def follow_direct_path(request: web.Request, wanted: DirectPath, found: Project) -> web.Response:
    """Redirects to the URL of the link that has this direct path."""
    url = await link_queries.url_at(context.database(request), found.id, wanted.tag_name, f"/{wanted.path}")
    if url is None:
        raise record_not_found()
    raise web.HTTPFound(written_url(url))


async def _release(request: web.Request, found: Project, tag: str) -> Release:
    """Raises 404."""
    release = await queries.find_release(context.database(request), found.id, tag)
    if release is None:
        raise record_not_found()
    return release


def _answer(
    request: web.Request, found: Project, tag: str, row: dict[str, Any], status: int = 200
) -> web.Response:
    return json_value(entities.link(request, found, tag, row), status=status)
