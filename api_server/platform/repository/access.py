"""Who may read a project's repository, and what is made from it."""

from api_server.platform.projects.access import Project
from api_server.web.access import Role
from api_server.web.errors import forbidden


def require_readable(project: Project) -> None:
    """Raises 403 for guests of a private project and where the repository is closed to the caller."""
    opens = project.opens(project.repository_access_level)
    if not opens or (project.role < Role.REPORTER and project.visibility == "private"):
        raise forbidden()
