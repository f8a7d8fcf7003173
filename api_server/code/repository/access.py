"""A project's repository, for callers to whom it is open: routes say so (`opens="repository"`)."""

from aiohttp import web

from api_server.git.repositories import Repository, repositories
from api_server.namespaces.project_queries import is_there
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.errors import not_found


async def ensured(request: web.Request, project: Project) -> bool:
    """Makes the project's repository where it does not exist yet; False for a project that has just been removed, of
    which nothing may be left."""
    found = repositories(request)
    if not found.exists(project.id):
        if not await is_there(context.database(request), project.id):
            return False
        await found.ensure(project.id, project.default_branch)
    return True


async def opened(request: web.Request, project: Project) -> Repository:
    """The project's repository, made where it does not exist yet. Raises 404 as `ensured` says."""
    if not await ensured(request, project):
        raise not_found("Project")
    return repositories(request).open(project.id)


def url_of(request: web.Request, project: Project) -> str:
    """Where its pages are."""
    return f"{context.settings(request).base_url}/{project.full_path}"
