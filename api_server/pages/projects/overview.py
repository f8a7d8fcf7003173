"""The page of a project: what it is, where it is cloned from, its last commit and its README."""

import asyncio
from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.code.repository import entities
from api_server.code.repository.access import opened, url_of
from api_server.git import references, trees
from api_server.git.commits import tree_of
from api_server.git.repositories import Repository
from api_server.namespaces import project_queries
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.projects import text_files
from api_server.pages.projects.text_files import Shown
from api_server.pages.sessions import NOBODY, Visitor
from api_server.web import context


@attrs.frozen
class Contents:
    """What the repository has, as far as the page tells of it."""

    commit: dict[str, Any] | None = None
    branches: int = 0
    readme_path: str = ""
    readme: Shown | None = None


async def show_project(request: web.Request, who: Visitor, found: Project) -> web.Response:
    entity = await project_queries.show_project(context.database(request), found.id, who.user_id or NOBODY)
    contents = await _contents(request, found) if found.reads_repository else None
    return page.answer(
        request,
        who,
        "projects/overview.html",
        project=found,
        entity=orjson.loads(entity),
        contents=contents,
    )


async def _contents(request: web.Request, found: Project) -> Contents:
    repository = await opened(request, found)
    branches = await asyncio.to_thread(references.branches, repository)
    head = references.branch(repository, found.default_branch)
    if head is None:
        return Contents(branches=len(branches))
    commit = entities.commit(repository, head.commit, url_of(request, found))
    path = await asyncio.to_thread(_readme, repository, head.commit)
    entry = trees.find_entry(repository, head.commit, path) if path else None
    readme = await text_files.shown(repository, entry) if entry and entry.is_blob else None
    return Contents(commit, len(branches), path, readme)


def _readme(repository: Repository, commit: str) -> str:
    """The name of the README in the root folder, "" without one; of several the first by name."""
    names = (entry.name or "" for entry in tree_of(repository, commit))
    return min((name for name in names if name.lower().partition(".")[0] == "readme"), default="")
