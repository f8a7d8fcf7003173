"""`/-/tree/<ref>/<path>` and `/-/blob/<ref>/<path>`: folders and files of a commit."""

import attrs
from aiohttp import web

from api_server.code.reading import reading
from api_server.git import trees
from api_server.git.errors import NotFoundError
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.paging import pager
from api_server.pages.projects import text_files
from api_server.pages.projects.places import place
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.pages.texts import url_path
from api_server.state.listing import MOST_COUNTED, Listed
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated, bounded_offset_page

pages = Pages()


@attrs.frozen(kw_only=True)
class ShowTree(Paginated):
    rest: str
    per_page: int = 100


@attrs.frozen(kw_only=True)
class ShowBlob:
    rest: str


@pages.get("/{project}/-/tree", access=project(opens="repository"))
async def show_default_tree(request: web.Request, who: Visitor, found: Project) -> web.Response:
    return page.see_other(request, who, f"/{found.full_path}/-/tree/{url_path(found.default_branch)}")


@pages.get("/{project}/-/tree/{rest:.+}", access=project(opens="repository"))
async def show_tree(request: web.Request, who: Visitor, wanted: ShowTree, found: Project) -> web.Response:
    """Folders first, then by name."""
    at = await place(request, found, wanted.rest)
    if at is None:
        return page.answer(request, who, "projects/no_commits.html", project=found, tab="files")
    try:
        folder = trees.open_folder(at.repository, at.commit, at.path)
    except NotFoundError:
        raise not_found("Tree") from None
    part = bounded_offset_page(wanted)
    async with reading(request):
        nodes, more, total = await folder.page(part.offset, part.size, MOST_COUNTED)
    listed = Listed("", more, None, total)
    return page.answer(
        request,
        who,
        "projects/tree.html",
        project=found,
        at=at,
        nodes=nodes,
        pages=pager(request, part, listed),
    )


@pages.get("/{project}/-/blob/{rest:.+}", access=project(opens="repository"))
async def show_blob(request: web.Request, who: Visitor, wanted: ShowBlob, found: Project) -> web.Response:
    at = await place(request, found, wanted.rest)
    entry = trees.find_entry(at.repository, at.commit, at.path) if at else None
    if at is None or entry is None or entry.kind == "submodule":
        raise not_found("File")
    if not entry.is_blob:
        return page.see_other(request, who, f"/{found.full_path}/-/tree/{url_path(f'{at.ref}/{at.path}')}")
    return page.answer(
        request,
        who,
        "projects/blob.html",
        project=found,
        at=at,
        entry=entry,
        shown=await text_files.shown(at.repository, entry),
    )
