"""Statements that write notes."""

import datetime

import attrs

from api_server.merge_requests.notes.queries import Note
from api_server.state.database import Transaction
from api_server.state.statements import Query


@attrs.frozen(kw_only=True)
class Noteable:
    """What notes are about: a merge request, how many notes it has, and how long they are together, in bytes."""

    id: int
    author_id: int | None
    notes: int
    length: int


LOCK = """
    SELECT merge_requests.id FROM merge_requests
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.iid = %(iid)s::bigint FOR UPDATE
"""
#: Counted when the row is held: what was said before that is seen.
NOTEABLE = Query(
    """
    SELECT merge_requests.id, merge_requests.author_id, count(notes.id) AS notes,
        coalesce(sum(octet_length(notes.body)), 0)::bigint AS length
    FROM merge_requests LEFT JOIN notes ON notes.merge_request_id = merge_requests.id
    WHERE merge_requests.id = %(id)s GROUP BY merge_requests.id
    """,
    Noteable,
)


async def lock(transaction: Transaction, project_id: int, iid: int) -> Noteable:
    """The merge request, of which nobody else says anything until the transaction ends. Raises NotFound."""
    found = await transaction.value(LOCK, project_id=project_id, iid=iid)
    return await transaction.one(NOTEABLE, id=found)


@attrs.frozen(kw_only=True)
class Noted:
    """A merge request of which the service writes notes: `version_id` is its newest version's."""

    id: int
    iid: int
    project_id: int
    full_path: str
    target_branch: str
    base_sha: str | None
    head_sha: str
    version_id: int | None
    notes: int


NOTED = Query(
    """
    SELECT merge_requests.id, merge_requests.iid, merge_requests.project_id, projects.full_path,
        merge_requests.target_branch, merge_requests.base_sha, merge_requests.head_sha,
        (SELECT max(versions.id) FROM merge_request_versions versions
            WHERE versions.merge_request_id = merge_requests.id) AS version_id,
        (SELECT count(*) FROM notes WHERE notes.merge_request_id = merge_requests.id) AS notes
    FROM merge_requests JOIN projects ON projects.id = merge_requests.project_id
    WHERE merge_requests.id = %(id)s
    """,
    Noted,
)


async def noted(transaction: Transaction, merge_request_id: int) -> Noted:
    """Raises NotFound."""
    return await transaction.one(NOTED, id=merge_request_id)


@attrs.frozen(kw_only=True)
class NewNote:
    """A note to be written: see the columns of the table. `created_at` is now, where it is None."""

    merge_request_id: int
    discussion_id: str
    author_id: int | None
    body: str
    type: str | None = None
    system: bool = False
    internal: bool = False
    diff_position: str | None = None
    resolved: bool = False
    created_at: datetime.datetime | None = None


INSERT = """
    INSERT INTO notes (merge_request_id, discussion_id, type, author_id, body, system, internal, diff_position,
        resolved_at, resolved_by_id, created_at, updated_at)
    VALUES (%(merge_request_id)s, %(discussion_id)s, %(type)s, %(author_id)s, %(body)s, %(system)s, %(internal)s,
        %(diff_position)s, CASE WHEN %(resolved)s::boolean THEN %(now)s::timestamptz END,
        CASE WHEN %(resolved)s::boolean THEN %(author_id)s::bigint END,
        coalesce(%(created_at)s, %(now)s), coalesce(%(created_at)s, %(now)s))
    RETURNING id
"""


async def insert(transaction: Transaction, new: NewNote) -> int:
    """Its id."""
    return int(await transaction.value(INSERT, **attrs.asdict(new)))


MAKE_THREAD = """
    UPDATE notes SET type = 'DiscussionNote'
    WHERE merge_request_id = %(merge_request_id)s AND discussion_id = %(discussion_id)s AND type IS NULL
"""


async def make_thread(transaction: Transaction, first: Note) -> None:
    """What was a note by itself is the first one of a thread, which can be resolved."""
    await transaction.run(
        MAKE_THREAD, merge_request_id=first.merge_request_id, discussion_id=first.discussion_id
    )


EDIT = "UPDATE notes SET body = %(body)s, updated_at = %(now)s WHERE id = %(id)s"


async def edit(transaction: Transaction, note_id: int, body: str) -> None:
    await transaction.run(EDIT, id=note_id, body=body)


DELETE = "DELETE FROM notes WHERE id = %(id)s"


async def delete(transaction: Transaction, note_id: int) -> None:
    await transaction.run(DELETE, id=note_id)


RESOLVE = """
    UPDATE notes SET resolved_at = %(now)s, resolved_by_id = %(user_id)s, updated_at = %(now)s
    WHERE id = ANY (%(ids)s) AND resolved_at IS NULL
"""
UNRESOLVE = """
    UPDATE notes SET resolved_at = NULL, resolved_by_id = NULL, updated_at = %(now)s
    WHERE id = ANY (%(ids)s) AND resolved_at IS NOT NULL
"""


async def resolve(transaction: Transaction, ids: list[int], user_id: int, *, resolved: bool) -> None:
    """Those that are not so yet are resolved by that user, or open again."""
    await transaction.run(RESOLVE if resolved else UNRESOLVE, ids=ids, user_id=user_id)


TOUCH = "UPDATE merge_requests SET updated_at = %(now)s WHERE id = %(id)s"


async def touch(transaction: Transaction, merge_request_id: int) -> None:
    """Something new is said of it."""
    await transaction.run(TOUCH, id=merge_request_id)
