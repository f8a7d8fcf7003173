"""The JSON of what lives in git and not in PostgreSQL."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import attrs

from api_server.code.branches.protection import Protection
from api_server.code.repository.queries import TagRelease
from api_server.code.tags.protection import TagProtection
from api_server.git import commits
from api_server.git.references import Branch, Tag
from api_server.git.repositories import Repository
from api_server.namespaces.resources import Project
from api_server.web.routes import Role

#: Characters of a commit's message in a list, which may have a thousand of them.
MESSAGE_IN_LIST = 16 * 1024


def commit(
    repository: Repository, sha: str, project_url: str, stats: dict[str, int] | None = None
) -> dict[str, Any]:
    """GitLab's commit, with its page's URL, and its line counts where they are given."""
    shown = commits.commit_data(repository, sha) | {"web_url": f"{project_url}/-/commit/{sha}"}
    return shown if stats is None else shown | {"stats": stats}


async def commit_list(
    repository: Repository,
    shas: Sequence[str],
    project_url: str,
    stats: Mapping[str, dict[str, int]] | None = None,
) -> list[dict[str, Any]]:
    """Commits of a list, read in a thread: their messages are as large as a push may bring them."""
    counts = stats or {}

    def read() -> list[dict[str, Any]]:
        return [_in_list(commit(repository, sha, project_url, counts.get(sha))) for sha in shas]

    return await asyncio.to_thread(read)


def _in_list(shown: dict[str, Any]) -> dict[str, Any]:
    return shown | {"message": shown["message"][:MESSAGE_IN_LIST]}


async def branch_list(
    repository: Repository,
    found: Sequence[Branch],
    project: Project,
    project_url: str,
    protections: Mapping[str, Protection],
) -> list[dict[str, Any]]:
    """Branches of a list; `protections` are by their names. See `commit_list`."""

    def read() -> list[dict[str, Any]]:
        shown = [branch(repository, each, project, project_url, protections[each.name]) for each in found]
        return [each | {"commit": _in_list(each["commit"])} for each in shown]

    return await asyncio.to_thread(read)


async def tag_list(
    repository: Repository,
    found: Sequence[Tag],
    project_url: str,
    rules: Mapping[str, TagProtection],
    releases: Mapping[str, TagRelease],
) -> list[dict[str, Any]]:
    """Tags of a list; `rules` and `releases` are by their names. See `commit_list`."""

    def read() -> list[dict[str, Any]]:
        shown = [
            tag(
                repository,
                each,
                project_url,
                protected=rules[each.name].protected,
                release=releases.get(each.name),
            )
            for each in found
        ]
        return [each | {"commit": _in_list(each["commit"])} for each in shown]

    return await asyncio.to_thread(read)


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
