"""A project's repository, for callers to whom it is open: routes say so (`opens="repository"`)."""

from aiohttp import web

from api_server.git.repositories import Repository, repositories
from api_server.namespaces.projects.access import Project
from api_server.web import context
from api_server.web.errors import forbidden


def require_readable(project: Project) -> None:
    """Raises 403 for guests of a private project and where the repository is closed to the caller."""
    if not project.reads_repository:
        raise forbidden()


async def opened(request: web.Request, project: Project) -> Repository:
    """The project's repository, made where it does not exist yet."""
    found = repositories(request)
    await found.ensure(project.id, project.default_branch)
    return found.open(project.id)


def url_of(request: web.Request, project: Project) -> str:
    """Where its pages are."""
    return f"{context.settings(request).base_url}/{project.full_path}"
