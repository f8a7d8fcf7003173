"""`/-/blob`, `/-/images`, `/-/blame`, `/-/branches` and `/-/tags`: files of a commit, branches and tags."""

import asyncio
import datetime
from collections.abc import Sequence
from typing import Literal

import attrs
from aiohttp import hdrs, web
from markupsafe import Markup

from api_server.code import entities, repository_queries
from api_server.code.entities import tag_named
from api_server.code.file_answers import send_raw
from api_server.code.protection import protections_of, tag_protections_of
from api_server.code.reading import opened, reading, reading_refs, streaming, url_of
from api_server.git import file_history, references, trees
from api_server.git.file_history import BlamedCommit
from api_server.git.repositories import Repository
from api_server.git.trees import IN_MEMORY_BYTES, Entry
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.page import pager, url_path
from api_server.pages.routes import Pages, allows
from api_server.pages.sessions import Visitor
from api_server.pages.text import rendering
from api_server.pages.text.rendering import MAX_MARKDOWN
from api_server.state.listing import ListPage, Page
from api_server.static_objects import raw
from api_server.web import context
from api_server.web.errors import bad_parameters, not_found
from api_server.web.pagination import Paginated, offset_page
from api_server.web.routes import Role, caller_or_anonymous

#: Maximum number of names in the path above a page. Each is a link that contains the whole path up to it.
MAX_SHOWN = 50


@attrs.frozen
class TreePath:
    """A path in a commit. `commit` is the full SHA that `ref` names; `path` is "" for the root folder."""

    repository: Repository = attrs.field(repr=False)
    ref: str
    commit: str
    path: str

    @property
    def trail(self) -> list[tuple[str, str]]:
        """The names and paths of the folders above and of the file or folder itself: the last `MAX_SHOWN` of them."""
        parts = self.path.split("/") if self.path else []
        numbers = range(max(0, len(parts) - MAX_SHOWN), len(parts))
        return [(parts[number], "/".join(parts[: number + 1])) for number in numbers]


#: The rule for pages that change files.
EDIT = project(Role.DEVELOPER, feature="repository", changes=True)


def may_edit(tree_path: TreePath, project: Project, visitor: Visitor) -> bool:
    """Return whether `tree_path` is on a branch, and the visitor may change files of the project."""
    return references.branch(tree_path.repository, tree_path.ref) is not None and allows(
        EDIT, project, visitor
    )


async def read_tree_path(request: web.Request, project: Project, rest: str) -> TreePath | None:
    """Return the ref and path that `rest` names, or None if it names the default branch and that has no commit yet.
    Raise 404 if there is no such ref."""
    repository, rest = await opened(context.services(request), project), rest.strip("/")
    split = references.split_ref_and_path(repository, rest)
    if split is None:
        if rest == project.default_branch:
            return None
        raise not_found("Tree")
    resolved, path = split
    # `HEAD` and short SHAs stay as they were written; the full names of refs are shortened.
    return TreePath(repository, resolved.name, resolved.commit, path)


async def entry_at(request: web.Request, project: Project, rest: str) -> tuple[TreePath, Entry]:
    """Return the file or folder that `rest` names, and its ref and path. Raise 404 if there is none."""
    tree_path = await read_tree_path(request, project, rest)
    entry = trees.find_entry(tree_path.repository, tree_path.commit, tree_path.path) if tree_path else None
    if tree_path is None or entry is None or entry.kind == "submodule":
        raise not_found("File")
    return tree_path, entry


#: Maximum number of lines of a file that are shown.
MAX_LINES = 5000
#: Maximum size, in bytes, of an image that is shown.
MAX_IMAGE = 10 * 2**20
#: A file with a NUL in so many first bytes is binary, as in git.
_LOOKED_AT = 8000
_MARKDOWN = (".md", ".markdown", ".mdown", ".mkd", ".mkdn")
_IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}

FileKind = Literal["markdown", "source", "image", "document", "binary", "large"]


@attrs.frozen
class ShownFile:
    """A file as a page shows it: as `html` (Markdown) or as `lines`. `cut` says that the file has more lines."""

    kind: FileKind
    html: Markup | None = None
    lines: Sequence[str] = ()
    cut: bool = False


def is_markdown(path: str) -> bool:
    return path.lower().endswith(_MARKDOWN)


async def shown_file(
    request: web.Request,
    visitor: Visitor,
    project: Project,
    tree_path: "TreePath",
    entry: Entry,
    *,
    plain: bool = False,
) -> ShownFile:
    """Return the file as a page shows it. With `plain`, Markdown is shown as source. The text of a symbolic link is
    its target."""
    name = entry.path.lower()
    renders = is_markdown(name) and entry.kind != "symlink" and not plain
    if (entry.size or 0) <= MAX_IMAGE and name.endswith(tuple(_IMAGES)) and entry.kind != "symlink":
        return ShownFile("image")
    if (entry.size or 0) > (MAX_MARKDOWN if renders else IN_MEMORY_BYTES):
        return ShownFile("document" if name.endswith(".pdf") else "large")
    data = await asyncio.to_thread(trees.read_blob, tree_path.repository, entry)
    if data.startswith(b"%PDF-"):
        return ShownFile("document")
    if b"\0" in data[:_LOOKED_AT]:
        return ShownFile("binary")
    text = data.decode(errors="replace").replace("\r\n", "\n")
    if renders:
        folder = entry.path.rpartition("/")[0]
        (html,) = await rendering.markdown(request, visitor, project, [text], tree_path.ref, folder)
        return ShownFile("markdown", html)
    lines: Sequence[str] = text.removesuffix("\n").split("\n")
    if entry.kind != "symlink":
        lines = await rendering.coloured_lines(request, entry.path.rpartition("/")[2], text) or lines
    return ShownFile("source", lines=lines[:MAX_LINES], cut=len(lines) > MAX_LINES)


pages = Pages()


@attrs.frozen(kw_only=True)
class ShowBlob:
    rest: str
    plain: bool = False


@attrs.frozen(kw_only=True)
class ShowImage:
    rest: str


@pages.get("/{project}/-/blob/{rest:.+}", access=project(feature="repository"))
async def show_blob(
    request: web.Request, visitor: Visitor, params: ShowBlob, project: Project
) -> web.Response:
    tree_path, entry = await entry_at(request, project, params.rest)
    if not entry.is_blob:
        return page.see_other(
            request, visitor, f"/{project.full_path}/-/tree/{url_path(f'{tree_path.ref}/{tree_path.path}')}"
        )
    return page.answer(
        request,
        visitor,
        "projects/blob.html",
        project=project,
        at=tree_path,
        entry=entry,
        may_edit=may_edit(tree_path, project, visitor),
        shown=await shown_file(request, visitor, project, tree_path, entry, plain=params.plain),
        plain=params.plain,
        has_source=is_markdown(tree_path.path),
    )


@pages.get("/{project}/-/images/{rest:.+}", access=project(feature="repository"))
async def show_image(request: web.Request, params: ShowImage, project: Project) -> web.StreamResponse:
    """Return an image for our own pages, whose content security policy forbids the host to which `/-/raw` may redirect.
    SVG is never shown."""
    tree_path, entry = await entry_at(request, project, params.rest)
    if not entry.is_blob or (entry.size or 0) > MAX_IMAGE:
        raise not_found("Image")
    headers = raw.SAFETY | {
        hdrs.ETAG: f'"{entry.id}"',
        hdrs.CACHE_CONTROL: "private, max-age=0, must-revalidate",
    }
    slot = streaming(context.services(request), caller_or_anonymous(request))
    return await send_raw(request, tree_path.repository, entry, headers, slot, _described)


def _described(head: bytes) -> dict[str, str]:
    media_type = raw.label(head).media_type
    if media_type not in _IMAGES.values():
        raise not_found("Image")
    return {hdrs.CONTENT_TYPE: media_type}


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
    """List the branches, those with the newest commits first."""
    services = context.services(request)
    repository, part = await opened(services, project), offset_page(params)
    ordered = await reading_refs(request, entities.find_branches, repository, params.search, "updated_desc")
    branches, url = ordered[part.offset : part.offset + part.size], url_of(services, project)
    protected = await protections_of(services.database, project.id, [branch.name for branch in branches])
    rows = ListPage("", part.offset + part.size < len(ordered), None, len(ordered))
    return page.answer(
        request,
        visitor,
        "projects/branches.html",
        project=project,
        may_edit=allows(EDIT, project, visitor),
        branches=await entities.branch_list(repository, branches, project, url, protected),
        search=params.search or "",
        pages=pager(request, part, rows),
    )


@pages.get("/{project}/-/tags/{name:.+}", access=project(feature="repository"))
async def show_tag(request: web.Request, visitor: Visitor, params: ShowTag, project: Project) -> web.Response:
    """Redirect to the files of the tag. Raise 404 if there is no such tag."""
    tag_named(await opened(context.services(request), project), params.name)
    return page.see_other(
        request, visitor, f"/{project.full_path}/-/tree/{url_path(f'refs/tags/{params.name}')}"
    )


@pages.get("/{project}/-/tags", access=project(feature="repository"))
async def list_tags(
    request: web.Request, visitor: Visitor, params: ListRefs, project: Project
) -> web.Response:
    """List the tags, the newest first."""
    services = context.services(request)
    repository, part = await opened(services, project), offset_page(params)
    ordered = await reading_refs(
        request, entities.find_tags, repository, params.search, "updated", descending=True
    )
    tags, url = ordered[part.offset : part.offset + part.size], url_of(services, project)
    names = [tag.name for tag in tags]
    rules = await tag_protections_of(services.database, project.id, names)
    releases = await repository_queries.releases_of(services.database, project.id, names)
    rows = ListPage("", part.offset + part.size < len(ordered), None, len(ordered))
    return page.answer(
        request,
        visitor,
        "projects/tags.html",
        project=project,
        may_edit=allows(EDIT, project, visitor),
        tags=await entities.tag_list(repository, tags, url, rules, releases),
        search=params.search or "",
        pages=pager(request, part, rows),
    )


#: Lines on one page.
MAX_BLAMED_LINES = 500
_LAST_SECOND = 253402300799  # the end of the year 9999


@attrs.frozen(kw_only=True)
class ShowBlame:
    rest: str
    page: int = 1


@attrs.frozen
class Chunk:
    """Consecutive lines that come from one commit, each with its number."""

    commit: BlamedCommit
    lines: Sequence[tuple[int, str]]

    @property
    def time(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(min(max(self.commit.time, 0), _LAST_SECOND), datetime.UTC)


@pages.get("/{project}/-/blame/{rest:.+}", access=project(feature="repository"))
async def show_blame(
    request: web.Request, visitor: Visitor, params: ShowBlame, project: Project
) -> web.Response:
    """Show a page of the file's lines. A file that is no text or too large to be shown has none."""
    tree_path, entry = await entry_at(request, project, params.rest)
    if params.page < 1:
        raise bad_parameters("page does not have a valid value")
    if not entry.is_blob:
        return page.see_other(request, visitor, f"/{project.full_path}/-/tree/{page.url_path(params.rest)}")
    file = await shown_file(request, visitor, project, tree_path, entry, plain=True)
    part = Page(MAX_BLAMED_LINES, (params.page - 1) * MAX_BLAMED_LINES)
    lines = list(enumerate(file.lines, 1))[part.offset : part.offset + part.size] if entry.size else []
    blamed = []
    if lines:
        async with reading(context.services(request), caller_or_anonymous(request)):
            blamed = await file_history.blame(
                tree_path.repository, tree_path.commit, tree_path.path, lines[0][0], len(lines)
            )
    rows = ListPage("", part.offset + part.size < len(file.lines), None, len(file.lines))
    return page.answer(
        request,
        visitor,
        "projects/blame.html",
        project=project,
        at=tree_path,
        file=file,
        chunks=[Chunk(hunk.commit, lines[hunk.first - lines[0][0] :][: hunk.count]) for hunk in blamed],
        pages=pager(request, part, rows),
    )
