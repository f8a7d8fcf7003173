"""`/projects/:id/releases`, the links of a release, and the redirects of its direct paths (supporting resources)."""

import datetime
from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.outbound.destinations import written_url
from api_server.releases import changes, queries
from api_server.releases.changes import Link, LinkType, NewRelease
from api_server.releases.queries import Release
from api_server.services import Services
from api_server.web.answers import json_value
from api_server.web.auth import Actor
from api_server.web.errors import ApiError, record_not_found
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import UNSET, Description, Name, Unset, Url
from api_server.web.routes import Role, Routes

routes = Routes()

_ONE = "/projects/{id}/releases/{tag_name}"
_LATEST = "/projects/{id}/releases/permalink/latest"


@attrs.frozen(kw_only=True)
class ListReleases(Paginated):
    id: str
    updated_before: datetime.datetime | None = None
    updated_after: datetime.datetime | None = None


@attrs.frozen(kw_only=True)
class OneRelease:
    id: str
    tag_name: str


@attrs.frozen(kw_only=True)
class LatestRelease:
    id: str
    suffix_path: str = ""


@attrs.frozen(kw_only=True)
class NewLink:
    """A link to create. `filepath` is the older name of `direct_asset_path`."""

    name: Name = attrs.field(metadata={"present": True})
    url: Url = attrs.field(metadata={"present": True})
    direct_asset_path: str | None = None
    filepath: str | None = None
    link_type: LinkType = "other"

    @property
    def link(self) -> Link:
        path = self.direct_asset_path or self.filepath or None
        return Link(name=self.name, url=self.url, filepath=path, link_type=self.link_type)


@attrs.frozen(kw_only=True)
class Assets:
    links: list[NewLink] = attrs.Factory(list)


@attrs.frozen(kw_only=True)
class CreateRelease:
    id: str
    tag_name: str = attrs.field(metadata={"present": True})
    tag_message: Description | None = None
    name: Name | None = None
    description: Description | None = None
    ref: str | None = None
    assets: Assets | None = None
    released_at: datetime.datetime | None = None

    @property
    def release(self) -> NewRelease:
        return NewRelease(
            tag=self.tag_name,
            ref=self.ref,
            tag_message=self.tag_message,
            name=self.name,
            description=self.description,
            released_at=self.released_at,
            links=[entry.link for entry in self.assets.links] if self.assets else [],
        )


@attrs.frozen(kw_only=True)
class UpdateRelease(OneRelease):
    name: Name | Unset | None = UNSET
    description: Description | Unset | None = UNSET
    released_at: datetime.datetime | Unset = UNSET

    @property
    def changed(self) -> dict[str, object]:
        """The new values of the release's fields. An empty name becomes that of the tag."""
        values = {
            "name": self.tag_name if self.name in (None, "") else self.name,
            "description": self.description,
            "released_at": self.released_at,
        }
        return {field: value for field, value in values.items() if value is not UNSET}


@routes.get(
    "/projects/{id}/releases",
    access=project(feature="repository"),
    takes_job_token=True,
    answers="200 [Release]",
)
async def list_releases(
    request: web.Request, services: Services, params: ListReleases, project: Project
) -> web.Response:
    """List the releases by `released_at` (the default) or `created_at`, newest first."""
    page = requested_page(params, queries.LISTING, default_order="released_at")
    rows = await queries.list_releases(
        services.database, page, project.id, params.updated_before, params.updated_after
    )
    release_entities = await changes.release_entities(services, project, orjson.loads(rows.body))
    return await paginated(request, page, attrs.evolve(rows, body=orjson.dumps(release_entities).decode()))


@routes.get(_LATEST, access=project(feature="repository"), takes_job_token=True, answers="302")
@routes.get(
    _LATEST + "/{suffix_path:(?s:.+)}",
    access=project(feature="repository"),
    takes_job_token=True,
    answers="302",
)
async def latest_release(services: Services, params: LatestRelease, project: Project) -> web.Response:
    """Redirect to the release with the latest date, or to a path below it."""
    tag = await queries.latest_tag(services.database, project.id)
    if tag is None:
        raise _not_found()
    raise web.HTTPFound(written_url(changes.release_address(services, project, tag, params.suffix_path)))


@routes.get(_ONE, access=project(feature="repository"), takes_job_token=True, answers="200 Release")
async def show_release(services: Services, params: OneRelease, project: Project) -> web.Response:
    """Show a release."""
    return json_value(await _entity(services, project, params.tag_name))


@routes.post(
    "/projects/{id}/releases",
    access=project(Role.DEVELOPER, feature="repository", changes=True),
    takes_job_token=True,
    answers="201 Release",
)
async def create_release(
    services: Services, actor: Actor, params: CreateRelease, project: Project
) -> web.Response:
    """Create a release. If its tag does not exist, create that from `ref`, too."""
    await changes.create(services, actor, project, params.release)
    return json_value(await _entity(services, project, params.tag_name), status=201)


@routes.put(
    _ONE,
    access=project(Role.DEVELOPER, feature="repository", changes=True),
    takes_job_token=True,
    answers="200 Release",
)
async def update_release(
    services: Services, actor: Actor, params: UpdateRelease, project: Project
) -> web.Response:
    """Update a release. Attributes that are not sent are kept."""
    await changes.update(services, actor, project, params.tag_name, params.changed)
    return json_value(await _entity(services, project, params.tag_name))


@routes.delete(
    _ONE,
    access=project(Role.DEVELOPER, feature="repository", changes=True),
    takes_job_token=True,
    answers="200 Release",
)
async def delete_release(
    services: Services, actor: Actor, params: OneRelease, project: Project
) -> web.Response:
    """Delete a release and return it. Its tag is kept."""
    row = await changes.delete(services, actor, project, params.tag_name)
    (entity,) = await changes.release_entities(services, project, [row])
    return json_value(entity)


async def _entity(services: Services, project: Project, tag: str) -> dict[str, object]:
    """Return the release in GitLab's form. Raise 404."""
    row = await queries.show_release(services.database, project.id, tag)
    if row is None:
        raise _not_found()
    (entity,) = await changes.release_entities(services, project, [row])
    return entity


def _not_found() -> ApiError:
    return ApiError(404, {"message": "404 Not Found"})


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
        """The new values of the link's fields."""
        values = {
            "name": self.name,
            "url": self.url,
            "filepath": self.direct_asset_path or self.filepath,
            "link_type": self.link_type,
        }
        return {field: value for field, value in values.items() if value}


@attrs.frozen(kw_only=True)
class DirectPath(OneRelease):
    path: str


@routes.get(_LINKS, access=project(feature="repository"), takes_job_token=True, answers="200 [ReleaseLink]")
async def list_links(
    request: web.Request, services: Services, params: ListLinks, project: Project
) -> web.Response:
    """List the links of a release, newest first."""
    release = await _release(services, project, params.tag_name)
    page = requested_page(params, queries.LIST_LINKS)
    rows = await queries.list_links(services.database, page, release.id)
    link_entities = [
        changes.link_entity(services, project, release.tag, row) for row in orjson.loads(rows.body)
    ]
    return await paginated(request, page, attrs.evolve(rows, body=orjson.dumps(link_entities).decode()))


@routes.get(_LINK, access=project(feature="repository"), takes_job_token=True, answers="200 ReleaseLink")
async def show_link(services: Services, params: OneLink, project: Project) -> web.Response:
    """Show a link of a release."""
    release = await _release(services, project, params.tag_name)
    row = await queries.show_link(services.database, release.id, params.link_id)
    return _answer(services, project, release.tag, row)


@routes.post(
    _LINKS,
    access=project(Role.DEVELOPER, feature="repository", changes=True),
    takes_job_token=True,
    answers="201 ReleaseLink",
)
async def create_link(services: Services, params: CreateLink, project: Project) -> web.Response:
    """Add a link to a release."""
    row = await changes.add_link(services, project, params.tag_name, params.link)
    return _answer(services, project, params.tag_name, row, status=201)


@routes.put(
    _LINK,
    access=project(Role.DEVELOPER, feature="repository", changes=True),
    takes_job_token=True,
    answers="200 ReleaseLink",
)
async def update_link(services: Services, params: UpdateLink, project: Project) -> web.Response:
    """Update a link of a release. Attributes that are not sent are kept."""
    row = await changes.update_link(services, project, params.tag_name, params.link_id, params.changed)
    return _answer(services, project, params.tag_name, row)


@routes.delete(
    _LINK,
    access=project(Role.DEVELOPER, feature="repository", changes=True),
    takes_job_token=True,
    answers="200 ReleaseLink",
)
async def delete_link(services: Services, params: OneLink, project: Project) -> web.Response:
    """Delete a link of a release and return it."""
    row = await changes.remove_link(services, project, params.tag_name, params.link_id)
    return _answer(services, project, params.tag_name, row)


@routes.get(
    "/projects/{id}/releases/{tag_name}/downloads/{path:(?s:.+)}",
    access=project(feature="repository"),
    takes_job_token=True,
    answers="302",
)
async def follow_direct_path(services: Services, params: DirectPath, project: Project) -> web.Response:
    """Redirect to the URL of the link that has this direct path."""
    url = await queries.url_at(services.database, project.id, params.tag_name, f"/{params.path}")
    if url is None:
        raise record_not_found()
    raise web.HTTPFound(written_url(url))


async def _release(services: Services, project: Project, tag: str) -> Release:
    """Return the release. Raise 404."""
    release = await queries.find_release(services.database, project.id, tag)
    if release is None:
        raise record_not_found()
    return release


def _answer(
    services: Services, project: Project, tag: str, row: dict[str, Any], status: int = 200
) -> web.Response:
    return json_value(changes.link_entity(services, project, tag, row), status=status)
