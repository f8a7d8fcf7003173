"""`/-/tree`: the entries of a folder with their last commits. The page of a project shows its root folder too."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs
import orjson
import pygit2
from aiohttp import web
from cachetools import LRUCache

from api_server.code import entities
from api_server.code.reading import reading, url_of
from api_server.code.repository_queries import last_pipeline
from api_server.git import file_history, trees
from api_server.git.errors import NotFoundError
from api_server.git.trees import Node
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.files import ShownFile, TreePath, may_edit, read_tree_path, shown_file
from api_server.pages.page import pager, url_path
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.services import Key, Services
from api_server.state.listing import MAX_COUNTED, ListPage, Page
from api_server.web import context
from api_server.web.errors import ApiError, not_found
from api_server.web.pagination import Paginated, bounded_offset_page
from api_server.web.routes import caller_or_anonymous
from common.concurrency import TooBusy

#: Maximum number of entries of a folder on one page.
MAX_ENTRIES = 100
#: A cache of the last commits of entries. Its keys are the commit shown, the folder, and a page's first and last entry.
FOLDER_COMMITS = Key[LRUCache[tuple[str, ...], dict[str, str]]]("folder_commits")


def setup(services: Services) -> None:
    services[FOLDER_COMMITS] = LRUCache(maxsize=1000)


@attrs.frozen
class FolderEntry:
    """An entry of a folder. `kind` is git's word; `size` is in bytes, None for anything but a file; `commit` is the
    last one that changed the entry, as the API shows it, or None if it was not found in time."""

    name: str
    path: str
    kind: str
    id: str
    size: int | None
    commit: Mapping[str, Any] | None


@attrs.frozen
class Folder:
    """A page of a folder: some of its entries, its last commit and that commit's newest pipeline."""

    entries: Sequence[FolderEntry]
    list_page: ListPage
    commit: Mapping[str, Any] | None
    pipeline: Mapping[str, Any] | None


async def read_folder(request: web.Request, project: Project, tree_path: TreePath, part: Page) -> Folder:
    """Return that part of the folder, with subfolders first. Raise 404 if there is no such folder, `TooBusy`, and 503
    if it takes too long."""
    services = context.services(request)
    try:
        folder = trees.open_folder(tree_path.repository, tree_path.commit, tree_path.path)
    except NotFoundError:
        raise not_found("Tree") from None
    async with reading(services, caller_or_anonymous(request)):
        nodes, more, total = await folder.page(part.offset, part.size, MAX_COUNTED)
    last_commits = await _last_commits(request, tree_path, nodes)
    latest = last_commits.get("") if tree_path.path else tree_path.commit
    shas = [*{*last_commits.values(), *([latest] if latest else [])}]
    commit_entities = await entities.commit_list(tree_path.repository, shas, url_of(services, project))
    commits = {commit["id"]: commit for commit in commit_entities}
    sizes = await asyncio.to_thread(
        trees.sizes, tree_path.repository, [node.id for node in nodes if node.kind == "blob"]
    )
    return Folder(
        [_entry(node, sizes, commits, last_commits) for node in nodes],
        ListPage("", more, None, total),
        commits.get(latest or ""),
        await pipeline_of(request, project, latest) if latest else None,
    )


def _entry(
    node: Node, sizes: Mapping[str, int], commits: Mapping[str, Any], last_commits: Mapping[str, str]
) -> FolderEntry:
    name = node.path.rpartition("/")[2]
    return FolderEntry(
        name, node.path, node.kind, node.id, sizes.get(node.id), commits.get(last_commits.get(name, ""))
    )


async def _last_commits(request: web.Request, tree_path: TreePath, nodes: Sequence[Node]) -> dict[str, str]:
    """Return the SHA of the last commit by entry name, and that of the folder under "". Those that are not found in
    time are missing."""
    names = [node.path.rpartition("/")[2] for node in nodes]
    cache = context.services(request)[FOLDER_COMMITS]
    key = (tree_path.commit, tree_path.path, *names[:1], *names[-1:])
    if key in cache:
        return cache[key]
    shas: dict[str, str] = {}
    with suppress(TooBusy, ApiError):
        async with reading(context.services(request), caller_or_anonymous(request)):
            shas = await file_history.last_commits(
                tree_path.repository, tree_path.commit, tree_path.path, names
            )
    if shas.keys() >= set(names):
        cache[key] = shas
    return shas


async def pipeline_of(request: web.Request, project: Project, sha: str) -> dict[str, Any] | None:
    """Return the commit's newest pipeline, or None if there is none or the visitor may not see it."""
    if not project.shows_pipelines:
        return None
    text = await last_pipeline(context.services(request).database, project.id, sha)
    return None if text is None else orjson.loads(text)


async def read_readme(
    request: web.Request, visitor: Visitor, project: Project, tree_path: TreePath
) -> tuple[str, ShownFile | None]:
    """Return the path of the folder's README and how it is shown, or "" and None if it has none."""
    path = await asyncio.to_thread(_readme, tree_path)
    entry = trees.find_entry(tree_path.repository, tree_path.commit, path) if path else None
    if entry is None or not entry.is_blob:
        return "", None
    return path, await shown_file(request, visitor, project, tree_path, entry)


def _readme(tree_path: TreePath) -> str:
    """Return the path of the folder's README, or "". If there are several, return the first by name."""
    tree = tree_path.repository[tree_path.commit].peel(pygit2.Tree)
    folder = tree[tree_path.path] if tree_path.path else tree
    names = [entry.name or "" for entry in folder] if isinstance(folder, pygit2.Tree) else []
    readme = min((name for name in names if name.lower().partition(".")[0] == "readme"), default="")
    return f"{tree_path.path}/{readme}" if readme and tree_path.path else readme


pages = Pages()


@attrs.frozen(kw_only=True)
class ShowTree(Paginated):
    rest: str
    per_page: int = MAX_ENTRIES


@pages.get("/{project}/-/tree", access=project(feature="repository"))
async def show_default_tree(request: web.Request, visitor: Visitor, project: Project) -> web.Response:
    return page.see_other(request, visitor, f"/{project.full_path}/-/tree/{url_path(project.default_branch)}")


@pages.get("/{project}/-/tree/{rest:.+}", access=project(feature="repository"))
async def show_tree(
    request: web.Request, visitor: Visitor, params: ShowTree, project: Project
) -> web.Response:
    """List a folder: subfolders first, each kind by name."""
    tree_path = await read_tree_path(request, project, params.rest)
    if tree_path is None:
        return page.answer(request, visitor, "projects/no_commits.html", project=project, tab="files")
    part = bounded_offset_page(params)
    folder = await read_folder(request, project, tree_path, part)
    readme_path, readme = await read_readme(request, visitor, project, tree_path)
    return page.answer(
        request,
        visitor,
        "projects/tree.html",
        project=project,
        at=tree_path,
        folder=folder,
        readme_path=readme_path,
        readme=readme,
        may_edit=may_edit(tree_path, project, visitor),
        pages=pager(request, part, folder.list_page),
    )
