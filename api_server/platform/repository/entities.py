"""The JSON of what lives in git and not in PostgreSQL."""

from typing import Any

import pygit2

from api_server.git import commits
from api_server.git.references import Branch, Tag
from api_server.platform.projects.access import Project
from api_server.state.database import Row
from api_server.web.access import Role


def commit(repository: pygit2.Repository, sha: str, project_url: str) -> dict[str, Any]:
    """GitLab's commit, with its page's URL."""
    return commits.commit_data(repository, sha) | {"web_url": f"{project_url}/-/commit/{sha}"}


def branch(
    repository: pygit2.Repository, found: Branch, project: Project, project_url: str, protection: Row | None
) -> dict[str, Any]:
    """A branch; `protection` is what applies to it, None where it is not protected."""
    push_level = protection.push_access_level if protection else Role.DEVELOPER
    return {
        "name": found.name,
        "commit": commit(repository, found.commit, project_url),
        "merged": False,
        "protected": protection is not None,
        "developers_can_push": protection is not None and push_level <= Role.DEVELOPER,
        "developers_can_merge": protection is not None and push_level <= Role.DEVELOPER,
        "can_push": project.role >= push_level,
        "default": found.name == project.default_branch,
        "web_url": f"{project_url}/-/tree/{found.name}",
    }


def tag(repository: pygit2.Repository, found: Tag, project_url: str) -> dict[str, Any]:
    return {
        "name": found.name,
        "message": found.message or "",
        "target": found.target,
        "commit": commit(repository, found.commit, project_url),
        "release": None,
        "protected": False,
        "created_at": None,
    }
