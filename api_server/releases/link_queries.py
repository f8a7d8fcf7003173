"""Statements about links of releases."""

from collections.abc import Sequence
from typing import Any

import attrs
import orjson

from api_server.releases.queries import ENTITIES
from api_server.state.database import Executor, Transaction
from api_server.state.listing import Listed, Listing, Page, one
from api_server.state.statements import Query

LISTING = Listing(
    ENTITIES["link"],
    "SELECT release_links.* FROM release_links WHERE release_links.release_id = %(release_id)s",
)


async def list_links(database: Executor, page: Page, release_id: int) -> Listed:
    return await LISTING.read(database, page, release_id=release_id)


SHOW = one(
    ENTITIES["link"],
    """
    SELECT release_links.* FROM release_links
    WHERE release_links.release_id = %(release_id)s AND release_links.id = %(id)s
    """,
)


async def show_link(database: Executor, release_id: int, link_id: int) -> dict[str, Any]:
    """Raises NotFound."""
    return dict(orjson.loads(await database.entity(SHOW, release_id=release_id, id=link_id)))


AT_PATH = """
    SELECT release_links.url FROM release_links JOIN releases ON releases.id = release_links.release_id
    WHERE releases.project_id = %(project_id)s AND releases.tag = %(tag)s AND release_links.filepath = %(filepath)s
"""


async def url_at(database: Executor, project_id: int, tag: str, filepath: str) -> str | None:
    found: str | None = await database.value(AT_PATH, project_id=project_id, tag=tag, filepath=filepath)
    return found


COUNT = """
    SELECT count(*) FROM release_links WHERE release_id = %(release_id)s
"""


async def count_links(database: Executor, release_id: int) -> int:
    return int(await database.value(COUNT, release_id=release_id))


@attrs.frozen
class Added:
    id: int


ADD = Query(
    """
    INSERT INTO release_links (release_id, name, url, filepath, link_type)
    SELECT %(release_id)s, sent.name, sent.url, sent.filepath, sent.link_type
    FROM ROWS FROM (jsonb_to_recordset(%(links)s::jsonb) AS (name text, url text, filepath text, link_type text))
        WITH ORDINALITY AS sent (name, url, filepath, link_type, place)
    ORDER BY sent.place RETURNING id
    """,
    Added,
)


async def add_links(transaction: Transaction, release_id: int, links: Sequence[dict[str, Any]]) -> list[int]:
    """Their ids. Raises Conflict on `release_links_name`, `_url` and `_filepath`."""
    text = orjson.dumps(links).decode()
    return [added.id for added in await transaction.rows(ADD, release_id=release_id, links=text)]


UPDATE = """
    UPDATE release_links SET name = %(name)s, url = %(url)s, filepath = %(filepath)s, link_type = %(link_type)s
    WHERE release_id = %(release_id)s AND id = %(id)s
"""


async def update_link(transaction: Transaction, release_id: int, link_id: int, **values: Any) -> None:
    """Raises Conflict as `add_links`."""
    await transaction.run(UPDATE, release_id=release_id, id=link_id, **values)


DELETE = """
    DELETE FROM release_links WHERE release_id = %(release_id)s AND id = %(id)s
"""


async def delete_link(transaction: Transaction, release_id: int, link_id: int) -> None:
    await transaction.run(DELETE, release_id=release_id, id=link_id)
