"""`/-/blame`: the commit that each line of a file comes from."""

import datetime
from collections.abc import Sequence

import attrs
from aiohttp import web

from api_server.code.reading import reading
from api_server.git import file_history
from api_server.git.file_history import BlamedCommit
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.files import entry_at, shown_file
from api_server.pages.page import pager
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.state.listing import ListPage, Page
from api_server.web import context
from api_server.web.errors import bad_parameters
from api_server.web.routes import caller_or_stranger

#: Maximum number of lines on one page.
MOST_LINES = 500
_LAST_SECOND = 253402300799  # of the year 9999, the last one that `datetime` can hold

pages = Pages()


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
    at, entry = await entry_at(request, project, params.rest)
    if params.page < 1:
        raise bad_parameters("page does not have a valid value")
    if not entry.is_blob:
        return page.see_other(request, visitor, f"/{project.full_path}/-/tree/{page.url_path(params.rest)}")
    file = await shown_file(request, visitor, project, at, entry, plain=True)
    part = Page(MOST_LINES, (params.page - 1) * MOST_LINES)
    lines = list(enumerate(file.lines, 1))[part.offset : part.offset + part.size] if entry.size else []
    blamed = []
    if lines:
        async with reading(context.services(request), caller_or_stranger(request)):
            blamed = await file_history.blame(at.repository, at.commit, at.path, lines[0][0], len(lines))
    listed = ListPage("", part.offset + part.size < len(file.lines), None, len(file.lines))
    return page.answer(
        request,
        visitor,
        "projects/blame.html",
        project=project,
        at=at,
        file=file,
        chunks=[Chunk(each.commit, lines[each.first - lines[0][0] :][: each.count]) for each in blamed],
        pages=pager(request, part, listed),
    )
