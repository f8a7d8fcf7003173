"""`/-/branches` and `/-/tags`."""

import asyncio

import attrs
from aiohttp import web

from api_server.code.branches.protection import protections_of
from api_server.code.repository import entities, orders, queries
from api_server.code.repository.access import opened, url_of
from api_server.code.repository.finding import tag_named
from api_server.code.tags.protection import tag_protections_of
from api_server.git import references
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.paging import pager
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.pages.texts import url_path
from api_server.state.listing import Listed
from api_server.web import context
from api_server.web.pagination import Paginated, offset_page

pages = Pages()


@attrs.frozen(kw_only=True)
class ListRefs(Paginated):
    search: str | None = None


@attrs.frozen(kw_only=True)
class ShowTag:
    name: str


@pages.get("/{project}/-/branches", access=project(opens="repository"))
async def list_branches(request: web.Request, who: Visitor, wanted: ListRefs, found: Project) -> web.Response:
    """Those with the newest commits first."""
    repository, part = await opened(request, found), offset_page(wanted)
    known = await asyncio.to_thread(references.branches, repository)
    named = [branch for branch in known if (wanted.search or "").lower() in branch.name.lower()]
    ordered = await asyncio.to_thread(orders.of_branches, repository, named, "updated_desc")
    shown, url = ordered[part.offset : part.offset + part.size], url_of(request, found)
    protected = await protections_of(context.database(request), found.id, [branch.name for branch in shown])
    listed = Listed("", part.offset + part.size < len(ordered), None, len(ordered))
    return page.answer(
        request,
        who,
        "projects/branches.html",
        project=found,
        branches=await entities.branch_list(repository, shown, found, url, protected),
        search=wanted.search or "",
        pages=pager(request, part, listed),
    )


@pages.get("/{project}/-/tags/{name:.+}", access=project(opens="repository"))
async def show_tag(request: web.Request, who: Visitor, wanted: ShowTag, found: Project) -> web.Response:
    """What the tag is of."""
    tag_named(await opened(request, found), wanted.name)
    return page.see_other(request, who, f"/{found.full_path}/-/tree/{url_path(f'refs/tags/{wanted.name}')}")


@pages.get("/{project}/-/tags", access=project(opens="repository"))
async def list_tags(request: web.Request, who: Visitor, wanted: ListRefs, found: Project) -> web.Response:
    """The newest first."""
    repository, part = await opened(request, found), offset_page(wanted)
    known = await asyncio.to_thread(references.tags, repository)
    named = [tag for tag in known if (wanted.search or "").lower() in tag.name.lower()]
    ordered = await asyncio.to_thread(orders.of_tags, repository, named, "updated", descending=True)
    shown, url = ordered[part.offset : part.offset + part.size], url_of(request, found)
    names = [tag.name for tag in shown]
    rules = await tag_protections_of(context.database(request), found.id, names)
    releases = await queries.releases_of(context.database(request), found.id, names)
    listed = Listed("", part.offset + part.size < len(ordered), None, len(ordered))
    return page.answer(
        request,
        who,
        "projects/tags.html",
        project=found,
        tags=await entities.tag_list(repository, shown, url, rules, releases),
        search=wanted.search or "",
        pages=pager(request, part, listed),
    )
