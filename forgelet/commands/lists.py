"""Lists that commands show: as many rows of the API's or the admin area's lists as the user wants."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import click
import orjson

from api_server.state.database import Database
from api_server.state.listing import ListPage, Page
from forgelet.instance import Instance

#: Number of rows that are read at once.
_PAGE = 500
Read = Callable[[Database, Page], Awaitable[ListPage]]
limit_option = click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1), help="Maximum number of lines."
)


def read_rows(
    instance: Instance, limit: int, read: Read, accepts: Callable[[dict[str, Any]], bool] | None = None
) -> list[dict[str, Any]]:
    """Return up to `limit` rows of a list for which `accepts` returns true."""

    async def run() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        page, more = Page(size=_PAGE, counted=False), limit > 0
        async with instance.database() as database:
            while more and len(rows) < limit:
                listed = await read(database, page)
                rows += [row for row in orjson.loads(listed.body) if accepts is None or accepts(row)]
                page, more = Page(size=_PAGE, counted=False, after=listed.last_id), listed.more
        return rows[:limit]

    return asyncio.run(run())
