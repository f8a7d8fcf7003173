"""`/<project>/-/raw/...`, `/raw/...` and `/-/archive/...` for the external storage, and the archives of the API."""

from urllib.parse import urlencode

import attrs
from aiohttp import web

from api_server.accounts.instance_settings import InstanceSettings, current
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.outbound.destinations import written_url
from api_server.services import Services
from api_server.state.secrets import STATIC_OBJECT_TOKEN
from api_server.static_objects import access, archives, raw
from api_server.static_objects.access import LIMITS, Reader
from api_server.static_objects.archives import serve_to_client
from api_server.web import context
from api_server.web.auth import Actor
from api_server.web.errors import too_many_requests
from api_server.web.routes import Routes
from common.static_paths import TOKEN_PARAMETER, Kind, StaticPath


def setup(app: web.Application) -> None:
    """Add the routes. Call this after all others, because these patterns match many paths."""
    rest = "{rest:(?s:.+)}"  # a file's name may contain line feeds
    for pattern in (
        f"/{{project:.+}}/-/raw/{rest}",
        f"/{{project:.+}}/-/archive/{rest}",
        f"/{{project:.+}}/raw/{rest}",
    ):
        app.router.add_get(pattern, static_object)


async def static_object(request: web.Request) -> web.StreamResponse:
    """Send a static object to the external storage. Redirect users there, or send it to them if none is configured."""
    services = context.services(request)
    path = access.path_of(request)
    instance = await current(services)
    from_storage = access.is_external_storage(
        request, instance.static_objects_external_storage_auth_token or ""
    )
    reader = await access.find_reader(request, path)
    project = await access.readable_project(services, path, reader)
    if not from_storage:
        services[LIMITS].check(path, project, reader)
        if instance.static_objects_external_storage_url:
            raise _to_external_storage(request, instance, path, project, reader)
    if path.kind is Kind.RAW:
        return await raw.serve(request, path, project, reader, from_storage=from_storage)
    return await archives.serve(request, path, project, reader.id, from_storage=from_storage)


def _to_external_storage(
    request: web.Request, instance: InstanceSettings, path: StaticPath, project: Project, reader: Reader
) -> web.HTTPFound:
    """Return a redirect to the external storage, with the user's token unless everybody can read the object."""
    query = list(path.query)
    if not project.shows_repository_to_everybody:
        token = context.services(request).vault.derived_token(STATIC_OBJECT_TOKEN, reader.seed)
        query.append((TOKEN_PARAMETER, token))
    location = (instance.static_objects_external_storage_url or "").rstrip("/") + request.rel_url.raw_path
    if query:
        location += f"?{urlencode(query)}"
    return web.HTTPFound(
        written_url(location),
        headers={"Cache-Control": "private, no-store", "Referrer-Policy": "no-referrer"},
    )


routes = Routes()


@attrs.frozen(kw_only=True)
class GetArchive:
    id: str
    format: str = "tar.gz"
    sha: str | None = None
    path: str = ""


@routes.get("/projects/{id}/repository/archive", access=project(feature="repository"), answers="200 bytes")
@routes.get(
    "/projects/{id}/repository/archive.{format:[a-z0-9.]+}",
    access=project(feature="repository"),
    answers="200 bytes",
)
async def show_archive(
    request: web.Request, services: Services, actor: Actor, params: GetArchive, project: Project
) -> web.StreamResponse:
    """Show the archive of the branch, tag or commit `sha` (by default the default branch), or of its folder `path`."""
    user_id = actor.user_id
    if wait := services[LIMITS].archive(user_id):
        raise too_many_requests(wait)
    return await serve_to_client(
        request,
        project,
        user_id,
        ref=params.sha or project.default_branch,
        ending=f".{params.format}",
        folder=params.path.strip("/"),
    )
