"""The JSON of what lives in git and not in PostgreSQL."""

from typing import Any
from urllib.parse import quote

import attrs

from api_server.code.branches.protection import Protection
from api_server.code.repository.queries import TagRelease
from api_server.git import commits
from api_server.git.references import Branch, Tag
from api_server.git.repositories import Repository
from api_server.namespaces.projects.project import Project
from api_server.web.access import Role


def commit(
    repository: Repository, sha: str, project_url: str, stats: dict[str, int] | None = None
) -> dict[str, Any]:
    """GitLab's commit, with its page's URL, and its line counts where they are given."""
    shown = commits.commit_data(repository, sha) | {"web_url": f"{project_url}/-/commit/{sha}"}
    return shown if stats is None else shown | {"stats": stats}


def branch(
    repository: Repository, found: Branch, project: Project, project_url: str, protection: Protection
) -> dict[str, Any]:
    """A branch; `protection` is what applies to it."""
    return {
        "name": found.name,
        "commit": commit(repository, found.commit, project_url),
        "merged": False,
        "protected": protection.protected,
        "developers_can_push": protection.protected and protection.may_push(Role.DEVELOPER),
        "developers_can_merge": protection.protected and protection.may_merge(Role.DEVELOPER),
        "can_push": protection.may_push(project.role, admin=project.admin),
        "default": found.name == project.default_branch,
        "web_url": f"{project_url}/-/tree/{quote(found.name)}",
    }


def tag(
    repository: Repository,
    found: Tag,
    project_url: str,
    *,
    protected: bool,
    release: TagRelease | None,
) -> dict[str, Any]:
    return {
        "name": found.name,
        "message": found.message or "",
        "target": found.target,
        "commit": commit(repository, found.commit, project_url),
        "release": release and attrs.asdict(release),
        "protected": protected,
        "created_at": None,
    }
