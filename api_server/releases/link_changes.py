"""Adding, changing and removing links of a release, as whoever may change the release may."""

from typing import Any

import attrs
from aiohttp import web

from api_server.namespaces.resources import Project
from api_server.releases import link_queries, links
from api_server.releases.changes import check_may_change, locked
from api_server.releases.links import Link
from api_server.state.errors import Conflict
from api_server.web import context


async def add(request: web.Request, project: Project, tag: str, link: Link) -> dict[str, Any]:
    """The new link's row. Raises 400, 403, 404."""
    links.check(link)
    await check_may_change(request, project, tag)
    async with context.database(request).transaction() as transaction:
        release = await locked(transaction, project, tag)
        count = await link_queries.count_links(transaction, release.id)
        links.check_room(count + 1, context.settings(request).release_links_limit)
        try:
            (link_id,) = await link_queries.add_links(transaction, release.id, [attrs.asdict(link)])
        except Conflict as problem:
            raise links.taken(problem) from None
        return await link_queries.show_link(transaction, release.id, link_id)


async def update(
    request: web.Request, project: Project, tag: str, link_id: int, changed: dict[str, Any]
) -> dict[str, Any]:
    """The link's row; `changed` are fields of `Link` that get other values. Raises 400, 403, 404."""
    await check_may_change(request, project, tag)
    async with context.database(request).transaction() as transaction:
        release = await locked(transaction, project, tag)
        row = await link_queries.show_link(transaction, release.id, link_id)
        after = row | changed
        del after["id"]
        links.check(Link(**after))
        try:
            await link_queries.update_link(transaction, release.id, link_id, **after)
        except Conflict as problem:
            raise links.taken(problem) from None
    return after | {"id": link_id}


async def remove(request: web.Request, project: Project, tag: str, link_id: int) -> dict[str, Any]:
    """The row that the link had. Raises 403, 404."""
    await check_may_change(request, project, tag)
    async with context.database(request).transaction() as transaction:
        release = await locked(transaction, project, tag)
        row = await link_queries.show_link(transaction, release.id, link_id)
        await link_queries.delete_link(transaction, release.id, link_id)
    return row
