"""`/-/tree`, `/-/blob`, `/-/branches`, `/-/tags`: folders and files of a commit, and the refs that lead to commits."""

import asyncio

import attrs
from aiohttp import web

from api_server.code import entities, repository_queries
from api_server.code.entities import tag_named
from api_server.code.protection import protections_of, tag_protections_of
from api_server.code.reading import opened, reading, url_of
from api_server.git import references, trees
from api_server.git.errors import NotFoundError
from api_server.git.repositories import Repository
from api_server.git.trees import IN_MEMORY_BYTES, Entry
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.page import pager, url_path
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.state.listing import MOST_COUNTED, ListPage
from api_server.web import context
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated, bounded_offset_page, offset_page
from api_server.web.routes import caller_or_stranger

#: Folders above a place that a page shows: each has a link with its whole path.
MOST_SHOWN = 50


@attrs.frozen
class TreePath:
    """`commit` is the full SHA that `ref` names; `path` is "" for the root folder."""

    repository: Repository = attrs.field(repr=False)
    ref: str
    commit: str
    path: str

    @property
    def trail(self) -> list[tuple[str, str]]:
        """Names and paths of the folders above, then of the place itself; of the nearest where there are many."""
        parts = self.path.split("/") if self.path else []
        numbers = range(max(0, len(parts) - MOST_SHOWN), len(parts))
        return [(parts[number], "/".join(parts[: number + 1])) for number in numbers]


async def read_tree_path(request: web.Request, project: Project, rest: str) -> TreePath | None:
    """What `rest` names; None in a repository that has no commit on its default branch, of that branch. Raises 404."""
    repository, rest = await opened(context.services(request), project), rest.strip("/")
    split = references.split_ref_and_path(repository, rest)
    if split is None:
        if rest == project.default_branch:
            return None
        raise not_found("Tree")
    resolved, path = split
    # As it was written: `HEAD` and short SHAs stay, names that are full are made short.
    return TreePath(repository, resolved.name, resolved.commit, path)


#: Lines of a file that are shown.
MOST_LINES = 5000
#: So far git looks for a NUL too.
_LOOKED_AT = 8000


@attrs.frozen
class ShownText:
    """`lines` is None for what is no text, or too large to be shown; `cut` says that there are more."""

    lines: list[str] | None
    binary: bool = False
    cut: bool = False


async def shown_text(repository: Repository, entry: Entry) -> ShownText:
    """The lines of a file, a symbolic link (its target), or nothing of what is too large."""
    if (entry.size or 0) > IN_MEMORY_BYTES:
        return ShownText(None)
    return await asyncio.to_thread(_read_text, repository, entry)


def _read_text(repository: Repository, entry: Entry) -> ShownText:
    data = trees.read_blob(repository, entry)
    if b"\0" in data[:_LOOKED_AT]:
        return ShownText(None, binary=True)
    lines = data.decode(errors="replace").replace("\r\n", "\n").removesuffix("\n").split("\n")
    return ShownText(lines[:MOST_LINES], cut=len(lines) > MOST_LINES)


pages = Pages()


@attrs.frozen(kw_only=True)
class ShowTree(Paginated):
    rest: str
    per_page: int = 100


@attrs.frozen(kw_only=True)
class ShowBlob:
    rest: str


@pages.get("/{project}/-/tree", access=project(feature="repository"))
async def show_default_tree(request: web.Request, visitor: Visitor, project: Project) -> web.Response:
    return page.see_other(request, visitor, f"/{project.full_path}/-/tree/{url_path(project.default_branch)}")


@pages.get("/{project}/-/tree/{rest:.+}", access=project(feature="repository"))
async def show_tree(
    request: web.Request, visitor: Visitor, params: ShowTree, project: Project
) -> web.Response:
    """Folders first, then by name."""
    at = await read_tree_path(request, project, params.rest)
    if at is None:
        return page.answer(request, visitor, "projects/no_commits.html", project=project, tab="files")
    try:
        folder = trees.open_folder(at.repository, at.commit, at.path)
    except NotFoundError:
        raise not_found("Tree") from None
    part = bounded_offset_page(params)
    async with reading(context.services(request), caller_or_stranger(request)):
        nodes, more, total = await folder.page(part.offset, part.size, MOST_COUNTED)
    listed = ListPage("", more, None, total)
    return page.answer(
        request,
        visitor,
        "projects/tree.html",
        project=project,
        at=at,
        nodes=nodes,
        pages=pager(request, part, listed),
    )


@pages.get("/{project}/-/blob/{rest:.+}", access=project(feature="repository"))
async def show_blob(
    request: web.Request, visitor: Visitor, params: ShowBlob, project: Project
) -> web.Response:
    at = await read_tree_path(request, project, params.rest)
    entry = trees.find_entry(at.repository, at.commit, at.path) if at else None
    if at is None or entry is None or entry.kind == "submodule":
        raise not_found("File")
    if not entry.is_blob:
        return page.see_other(
            request, visitor, f"/{project.full_path}/-/tree/{url_path(f'{at.ref}/{at.path}')}"
        )
    return page.answer(
        request,
        visitor,
        "projects/blob.html",
        project=project,
        at=at,
        entry=entry,
        shown=await shown_text(at.repository, entry),
    )


@attrs.frozen(kw_only=True)
class ListRefs(Paginated):
    search: str | None = None


@attrs.frozen(kw_only=True)
class ShowTag:
    name: str


@pages.get("/{project}/-/branches", access=project(feature="repository"))
async def list_branches(
    request: web.Request, visitor: Visitor, params: ListRefs, project: Project
) -> web.Response:
    """Those with the newest commits first."""
    services = context.services(request)
    repository, part = await opened(services, project), offset_page(params)
    known = await asyncio.to_thread(references.branches, repository)
    named = [branch for branch in known if (params.search or "").lower() in branch.name.lower()]
    ordered = await asyncio.to_thread(entities.sorted_branches, repository, named, "updated_desc")
    shown, url = ordered[part.offset : part.offset + part.size], url_of(services, project)
    protected = await protections_of(services.database, project.id, [branch.name for branch in shown])
    listed = ListPage("", part.offset + part.size < len(ordered), None, len(ordered))
    return page.answer(
        request,
        visitor,
        "projects/branches.html",
        project=project,
        branches=await entities.branch_list(repository, shown, project, url, protected),
        search=params.search or "",
        pages=pager(request, part, listed),
    )


@pages.get("/{project}/-/tags/{name:.+}", access=project(feature="repository"))
async def show_tag(request: web.Request, visitor: Visitor, params: ShowTag, project: Project) -> web.Response:
    """What the tag is of."""
    tag_named(await opened(context.services(request), project), params.name)
    return page.see_other(
        request, visitor, f"/{project.full_path}/-/tree/{url_path(f'refs/tags/{params.name}')}"
    )


@pages.get("/{project}/-/tags", access=project(feature="repository"))
async def list_tags(
    request: web.Request, visitor: Visitor, params: ListRefs, project: Project
) -> web.Response:
    """The newest first."""
    services = context.services(request)
    repository, part = await opened(services, project), offset_page(params)
    known = await asyncio.to_thread(references.tags, repository)
    named = [tag for tag in known if (params.search or "").lower() in tag.name.lower()]
    ordered = await asyncio.to_thread(entities.sorted_tags, repository, named, "updated", descending=True)
    shown, url = ordered[part.offset : part.offset + part.size], url_of(services, project)
    names = [tag.name for tag in shown]
    rules = await tag_protections_of(services.database, project.id, names)
    releases = await repository_queries.releases_of(services.database, project.id, names)
    listed = ListPage("", part.offset + part.size < len(ordered), None, len(ordered))
    return page.answer(
        request,
        visitor,
        "projects/tags.html",
        project=project,
        tags=await entities.tag_list(repository, shown, url, rules, releases),
        search=params.search or "",
        pages=pager(request, part, listed),
    )
