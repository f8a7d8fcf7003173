"""Who may read a project's repository, and what is made from it."""

from api_server.platform.projects.access import Project
from api_server.web.errors import forbidden


def require_readable(project: Project) -> None:
    """Raises 403 for guests of a private project and where the repository is closed to the caller."""
    if not project.reads_repository:
        raise forbidden()
