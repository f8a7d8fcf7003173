"""Releases and their links as the API shows them: rows, completed by what git knows."""

import asyncio
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

from aiohttp import web

from api_server.code.repository import entities
from api_server.code.repository.access import opened, url_of
from api_server.git.errors import NotFoundError
from api_server.git.repositories import Repository
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.routes import Role

_FORMATS = ("zip", "tar.gz", "tar.bz2", "tar")


async def shown(request: web.Request, project: Project, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each of these releases in GitLab's shape."""
    repository, url = await opened(request, project), url_of(request, project)
    return await asyncio.to_thread(lambda: [_release(request, project, repository, url, row) for row in rows])


def _release(
    request: web.Request, project: Project, repository: Repository, url: str, row: dict[str, Any]
) -> dict[str, Any]:
    tag, sha = row["tag"], row["sha"]
    sources = [{"format": one, "url": _archive(project, url, tag, one)} for one in _FORMATS]
    links = [link(request, project, tag, one) for one in row["links"]]
    path = urlsplit(url).path
    commit = None
    with suppress(NotFoundError):  # the tag has been moved since, and nothing else leads there
        commit = entities.commit(repository, sha, url)
    return {
        "name": row["name"],
        "tag_name": tag,
        "description": row["description"],
        "created_at": row["created_at"],
        "released_at": row["released_at"],
        "upcoming_release": row["upcoming_release"],
        "author": row["author"],
        "commit": commit,
        **({"commit_path": f"{path}/-/commit/{sha}"} if commit else {}),
        "tag_path": f"{path}/-/tags/{quote(tag)}",
        "assets": {"count": len(sources) + len(links), "sources": sources, "links": links},
        "evidences": [],
        "_links": _pages(project, url, tag),
    }


def link(request: web.Request, project: Project, tag: str, row: dict[str, Any]) -> dict[str, Any]:
    """A link; `direct_asset_url` leads to where its `filepath` stands for it."""
    path = row["filepath"]
    return {
        "id": row["id"],
        "name": row["name"],
        "url": row["url"],
        "direct_asset_url": address(request, project, tag, f"downloads{path}") if path else row["url"],
        "link_type": row["link_type"],
    }


def address(request: web.Request, project: Project, tag: str, below: str = "") -> str:
    """Where the API has the release of a tag, or what is `below` it."""
    base = f"{context.settings(request).base_url}/api/v4/projects/{project.id}"
    return f"{base}/releases/{quote(tag, safe='')}" + (f"/{quote(below)}" if below else "")


def _archive(project: Project, url: str, tag: str, ending: str) -> str:
    return url + quote(f"/-/archive/{tag}/{project.path}-{tag.replace('/', '-')}.{ending}")


def _pages(project: Project, url: str, tag: str) -> dict[str, str]:
    """Where GitLab has pages; that of changes is for whoever may change the release."""
    named = quote(tag, safe="")
    of_release = f"{url}/-/releases/{named}"
    pages = {
        f"{state}_{things}_url": f"{url}/-/{things}?release_tag={named}&scope=all&state={state}"
        for state, things in (
            ("closed", "issues"),
            ("closed", "merge_requests"),
            ("merged", "merge_requests"),
            ("opened", "issues"),
            ("opened", "merge_requests"),
        )
    }
    if project.role >= Role.DEVELOPER:
        pages["edit_url"] = f"{of_release}/edit"
    return dict(sorted(pages.items())) | {"self": of_release}
