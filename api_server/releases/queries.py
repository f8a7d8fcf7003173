# mypy: disable-error-code="empty-body"
"""Statements about releases and their links. Their results are completed with data from the repository."""

import datetime
from collections.abc import Sequence
from typing import Any

import attrs
import orjson

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, entity_statement, read_sql
from api_server.state.statements import Query

ENTITIES = read_sql("api_server.releases")

LISTING = ListQuery(
    ENTITIES["release"],
    """
    SELECT releases.* FROM releases WHERE releases.project_id = %(project_id)s
        AND (%(updated_before)s::timestamptz IS NULL OR releases.updated_at < %(updated_before)s)
        AND (%(updated_after)s::timestamptz IS NULL OR releases.updated_at > %(updated_after)s)
    """,
    {"released_at": "released_at", "created_at": "created_at"},
)


async def list_releases(
    database: Executor,
    page: Page,
    project_id: int,
    updated_before: datetime.datetime | None,
    updated_after: datetime.datetime | None,
) -> ListPage:
    return await LISTING.read(
        database, page, project_id=project_id, updated_before=updated_before, updated_after=updated_after
    )


SHOW = entity_statement(
    ENTITIES["release"],
    "SELECT releases.* FROM releases WHERE releases.project_id = %(project_id)s AND releases.tag = %(tag)s",
)


async def show_release(database: Executor, project_id: int, tag: str) -> dict[str, Any] | None:
    entity = await database.entity_if_there(SHOW, project_id=project_id, tag=tag)
    return None if entity is None else dict(orjson.loads(entity))


LATEST = """
    SELECT tag FROM releases WHERE project_id = %(project_id)s ORDER BY released_at DESC, id DESC LIMIT 1
"""


async def latest_tag(database: Executor, project_id: int) -> str | None:
    """Return the tag of the release with the latest date, which may be in the future, or None without releases."""
    tag: str | None = await database.value(LATEST, project_id=project_id)
    return tag


@attrs.frozen
class Release:
    id: int
    tag: str
    name: str
    description: str | None
    released_at: datetime.datetime


_COLUMNS = "id, tag, name, description, released_at"


@statement(f"""
    INSERT INTO releases (project_id, tag, name, description, sha, author_id, released_at, created_at, updated_at)
    VALUES (%(project_id)s, %(tag)s, %(name)s, %(description)s, %(sha)s, %(author_id)s,
        coalesce(%(released_at)s::timestamptz, %(now)s), %(now)s, %(now)s)
    RETURNING {_COLUMNS}
    """)
async def add_release(transaction: Transaction, **values: Any) -> Release:
    """Store a release and return it. Raise Conflict on `releases_tag`."""


FIND = Query(
    f"SELECT {_COLUMNS} FROM releases WHERE project_id = %(project_id)s AND tag = %(tag)s",
    Release,
)


@statement(FIND)
async def find_release(database: Executor, project_id: int, tag: str) -> Release | None: ...


@statement(f"{FIND} FOR UPDATE")
async def lock_release(transaction: Transaction, project_id: int, tag: str) -> Release | None:
    """Lock and return the release, or None, so that nobody else adds links until the transaction ends."""


@statement("""
    UPDATE releases SET name = %(name)s, description = %(description)s, released_at = %(released_at)s,
        updated_at = %(now)s
    WHERE id = %(release_id)s
""")
async def update_release(transaction: Transaction, release_id: int, **values: Any) -> None: ...


@statement("""
    DELETE FROM releases WHERE id = %(release_id)s
""")
async def delete_release(transaction: Transaction, release_id: int) -> None: ...


@attrs.frozen
class DeletedRelease:
    """A release that was deleted with its tag, and the user who deleted the tag (None if unknown)."""

    id: int
    tag: str
    name: str
    project_path: str
    author_name: str | None
    author_username: str | None
    author_email: str | None


@statement("""
    WITH gone AS (
        DELETE FROM releases WHERE project_id = %(project_id)s AND tag = ANY (%(tags)s::text[])
        RETURNING id, tag, name)
    SELECT gone.id, gone.tag, gone.name, projects.full_path AS project_path, users.name AS author_name,
        users.username AS author_username, users.email AS author_email
    FROM gone JOIN projects ON projects.id = %(project_id)s LEFT JOIN users ON users.id = %(user_id)s::bigint
    ORDER BY gone.id
    """)
async def delete_of_tags(
    transaction: Transaction, project_id: int, tags: Sequence[str], user_id: int | None
) -> list[DeletedRelease]: ...


LIST_LINKS = ListQuery(
    ENTITIES["link"],
    "SELECT release_links.* FROM release_links WHERE release_links.release_id = %(release_id)s",
)


async def list_links(database: Executor, page: Page, release_id: int) -> ListPage:
    return await LIST_LINKS.read(database, page, release_id=release_id)


SHOW_LINK = entity_statement(
    ENTITIES["link"],
    """
    SELECT release_links.* FROM release_links
    WHERE release_links.release_id = %(release_id)s AND release_links.id = %(id)s
    """,
)


async def show_link(database: Executor, release_id: int, link_id: int) -> dict[str, Any]:
    """Return the link's row. Raise NotFound."""
    return dict(orjson.loads(await database.entity(SHOW_LINK, release_id=release_id, id=link_id)))


AT_PATH = """
    SELECT release_links.url FROM release_links JOIN releases ON releases.id = release_links.release_id
    WHERE releases.project_id = %(project_id)s AND releases.tag = %(tag)s AND release_links.filepath = %(filepath)s
"""


async def url_at(database: Executor, project_id: int, tag: str, filepath: str) -> str | None:
    url: str | None = await database.value(AT_PATH, project_id=project_id, tag=tag, filepath=filepath)
    return url


@statement("""
    SELECT count(*) FROM release_links WHERE release_id = %(release_id)s
""")
async def count_links(database: Executor, release_id: int) -> int: ...


@attrs.frozen
class Added:
    id: int


ADD_LINKS = Query(
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
    """Store links and return their ids. Raise Conflict on `release_links_name`, `_url` and `_filepath`."""
    text = orjson.dumps(links).decode()
    return [added.id for added in await transaction.rows(ADD_LINKS, release_id=release_id, links=text)]


@statement("""
    UPDATE release_links SET name = %(name)s, url = %(url)s, filepath = %(filepath)s, link_type = %(link_type)s
    WHERE release_id = %(release_id)s AND id = %(link_id)s
""")
async def update_link(transaction: Transaction, release_id: int, link_id: int, **values: Any) -> None:
    """Change a link. Raise Conflict on `release_links_name`, `_url` and `_filepath`."""


@statement("""
    DELETE FROM release_links WHERE release_id = %(release_id)s AND id = %(link_id)s
""")
async def delete_link(transaction: Transaction, release_id: int, link_id: int) -> None: ...
