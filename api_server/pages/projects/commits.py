"""`/-/commits/<ref>`, `/-/commit/<sha>` and `/-/compare/<ref>...<ref>`: history, and what a commit changes."""

from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.code.reading import reading
from api_server.code.repository import entities
from api_server.code.repository.access import opened, url_of
from api_server.code.repository.finding import commit_named
from api_server.code.repository.queries import last_pipeline
from api_server.git import commits, references
from api_server.git.commits import History
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.paging import pager
from api_server.pages.projects.differences import read
from api_server.pages.projects.places import place
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.pages.texts import url_path
from api_server.state.listing import Listed
from api_server.web import context
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated, offset_page

pages = Pages()

#: Commits that a comparison lists.
MOST_COMPARED = 100


@attrs.frozen(kw_only=True)
class ListCommits(Paginated):
    rest: str
    per_page: int = 40


@attrs.frozen(kw_only=True)
class ShowCommit(Paginated):
    sha: str


@attrs.frozen(kw_only=True)
class Compare(Paginated):
    refs: str


@pages.get("/{project}/-/commits", access=project(opens="repository"))
async def list_default_commits(request: web.Request, who: Visitor, found: Project) -> web.Response:
    return page.see_other(request, who, f"/{found.full_path}/-/commits/{url_path(found.default_branch)}")


@pages.get("/{project}/-/commits/{rest:.+}", access=project(opens="repository"))
async def list_commits(
    request: web.Request, who: Visitor, wanted: ListCommits, found: Project
) -> web.Response:
    """Newest first; with a path, those that changed what is there."""
    at = await place(request, found, wanted.rest)
    if at is None:
        return page.answer(request, who, "projects/no_commits.html", project=found, tab="commits")
    part, url = offset_page(wanted), url_of(request, found)
    history = History(start=at.commit, path=at.path or None)
    async with reading(request):
        shas = await commits.history(at.repository, history, skip=part.offset, limit=part.size + 1)
    listed = Listed("", len(shas) > part.size, None, None)
    return page.answer(
        request,
        who,
        "projects/commits.html",
        project=found,
        at=at,
        commits=await entities.commit_list(at.repository, shas[: part.size], url),
        pages=pager(request, part, listed),
    )


@pages.get("/{project}/-/commit/{sha}", access=project(opens="repository"))
async def show_commit(request: web.Request, who: Visitor, wanted: ShowCommit, found: Project) -> web.Response:
    """Against its first parent."""
    repository = await opened(request, found)
    sha = commit_named(repository, wanted.sha)
    commit = entities.commit(repository, sha, url_of(request, found))
    parent = commit["parent_ids"][0] if commit["parent_ids"] else None
    part = offset_page(wanted)
    files, listed = await read(request, repository, parent, sha, part)
    return page.answer(
        request,
        who,
        "projects/commit.html",
        project=found,
        commit=commit,
        pipeline=await _pipeline(request, found, sha),
        files=files,
        total=listed.total,
        pages=pager(request, part, listed),
    )


async def _pipeline(request: web.Request, found: Project, sha: str) -> dict[str, Any] | None:
    """The commit's newest pipeline, where the visitor may see it."""
    if not found.shows_pipelines:
        return None
    text = await last_pipeline(context.database(request), found.id, sha)
    return None if text is None else orjson.loads(text)


@pages.get("/{project}/-/compare/{refs:.+}", access=project(opens="repository"))
async def compare(request: web.Request, who: Visitor, wanted: Compare, found: Project) -> web.Response:
    """What the second has that the first has not: since they parted, or between two dots as they are."""
    ends = references.split_range(wanted.refs)
    if ends is None:
        raise not_found("Comparison")
    first, dots, second = ends
    repository, part = await opened(request, found), offset_page(wanted)
    old, new = commit_named(repository, first), commit_named(repository, second)
    async with reading(request):
        base = old if dots == ".." else await commits.merge_base(repository, old, new)
        shas = await commits.commits_between(repository, old, new, MOST_COMPARED + 1)
    files, listed = await read(request, repository, base, new, part)
    url = url_of(request, found)
    return page.answer(
        request,
        who,
        "projects/compare.html",
        project=found,
        first=first,
        second=second,
        commits=await entities.commit_list(repository, shas[:MOST_COMPARED], url),
        more=len(shas) > MOST_COMPARED,
        files=files,
        total=listed.total,
        pages=pager(request, part, listed),
    )
