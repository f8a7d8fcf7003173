"""Statements about assignees and reviewers."""

from collections.abc import Sequence
from typing import Any, Literal

import attrs
import orjson

from api_server.merge_requests.queries import ENTITIES
from api_server.state.database import Executor, Transaction
from api_server.state.listing import Listed, Listing, Page
from api_server.state.statements import Query

Part = Literal["assignee", "reviewer"]

REVIEWERS = Listing(
    ENTITIES["reviewer"],
    """
    SELECT people.* FROM merge_request_people people
    WHERE people.merge_request_id = %(merge_request_id)s AND people.part = 'reviewer'
    """,
)


async def list_reviewers(database: Executor, page: Page, merge_request_id: int) -> Listed:
    return await REVIEWERS.read(database, page, merge_request_id=merge_request_id)


PARTICIPANTS = Listing(
    ENTITIES["participant"],
    """
    SELECT taking_part.id FROM (
        SELECT merge_requests.author_id AS id FROM merge_requests WHERE merge_requests.id = %(merge_request_id)s
        UNION
        SELECT people.user_id FROM merge_request_people people
        WHERE people.merge_request_id = %(merge_request_id)s
        UNION
        SELECT notes.author_id FROM notes
        WHERE notes.merge_request_id = %(merge_request_id)s AND NOT notes.system AND NOT notes.internal) taking_part
    WHERE taking_part.id IS NOT NULL
    """,
)


async def list_participants(database: Executor, page: Page, merge_request_id: int) -> Listed:
    """The author, assignees, reviewers, and who has written a note that everybody may read; each once."""
    return await PARTICIPANTS.read(database, page, merge_request_id=merge_request_id)


READERS = """
    SELECT coalesce(array_agg(users.id ORDER BY wanted.position), '{}')
    FROM unnest(%(user_ids)s::bigint[]) WITH ORDINALITY wanted (id, position)
    JOIN users ON users.id = wanted.id AND users.state = 'active'
    JOIN projects ON projects.id = %(project_id)s
    JOIN namespaces ON namespaces.id = projects.namespace_id
    WHERE reads_repository(
        projects,
        CASE WHEN users.admin THEN 50 ELSE project_role(projects, namespaces, users.id, %(now)s) END,
        NOT users.external)
"""


async def readers_among(database: Executor, project_id: int, user_ids: list[int]) -> list[int]:
    """Which of these users see the project's merge requests, in the order given."""
    return list(await database.value(READERS, project_id=project_id, user_ids=user_ids))


@attrs.frozen
class People:
    """JSON arrays, as deliveries show them."""

    assignees: str
    reviewers: str


DELIVERED = Query(
    """
    SELECT delivered_people(merge_requests, 'assignee') AS assignees,
        delivered_people(merge_requests, 'reviewer') AS reviewers
    FROM merge_requests WHERE merge_requests.id = %(id)s
    """,
    People,
)


async def delivered(database: Executor, merge_request_id: int, part: Part) -> list[dict[str, Any]]:
    """The assignees or reviewers as deliveries show them. Raises NotFound."""
    people = await database.one(DELIVERED, id=merge_request_id)
    found: list[dict[str, Any]] = orjson.loads(getattr(people, f"{part}s"))
    return found


REPLACE = """
    WITH others AS (
        DELETE FROM merge_request_people
        WHERE merge_request_id = %(id)s AND part = %(part)s AND user_id <> ALL (%(user_ids)s::bigint[]))
    INSERT INTO merge_request_people (merge_request_id, part, user_id, created_at)
    SELECT %(id)s, %(part)s, wanted.id, %(now)s
    FROM unnest(%(user_ids)s::bigint[]) WITH ORDINALITY wanted (id, position) ORDER BY wanted.position
    ON CONFLICT (merge_request_id, part, user_id) DO NOTHING
"""


async def replace(transaction: Transaction, merge_request_id: int, part: Part, user_ids: list[int]) -> None:
    """These and no others; who was among them already keeps her place."""
    await transaction.run(REPLACE, id=merge_request_id, part=part, user_ids=user_ids)


@attrs.frozen
class Named:
    """A user by what she was called."""

    name: str
    id: int


USERS_NAMED = Query(
    """
    SELECT lower(users.username) AS name, users.id FROM users WHERE lower(users.username) = ANY (%(names)s::text[])
    UNION ALL
    SELECT users.id::text, users.id FROM users WHERE users.id = ANY (%(ids)s::bigint[])
    """,
    Named,
)


async def users_named(database: Executor, names: Sequence[str], ids: Sequence[int]) -> dict[str, int]:
    """Ids of the users with these user names or ids, by the names in lower case and by the ids as text."""
    rows = await database.rows(USERS_NAMED, names=[name.lower() for name in names], ids=list(ids))
    return {row.name: row.id for row in rows}
