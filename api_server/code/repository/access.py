"""Who may read a project's repository, and what is made from it."""

from aiohttp import web

from api_server.git.repositories import Repository, repositories
from api_server.namespaces.projects.access import Project, find_project
from api_server.web.errors import forbidden


def require_readable(project: Project) -> None:
    """Raises 403 for guests of a private project and where the repository is closed to the caller."""
    if not project.reads_repository:
        raise forbidden()


async def opened(request: web.Request, project: Project) -> Repository:
    """The project's repository, made where it does not exist yet. Raises 403 as `require_readable`."""
    require_readable(project)
    found = repositories(request)
    await found.ensure(project.id, project.default_branch)
    return found.open(project.id)


async def readable_repository(request: web.Request, reference: str) -> tuple[Project, Repository]:
    """The project at `reference`, and its repository. Raises 404, and 403 as `require_readable`."""
    project = await find_project(request, reference)
    return project, await opened(request, project)
