# mypy: disable-error-code="empty-body"
"""Statements that read and write notes."""

import datetime

import attrs

from api_server.merge_requests.queries import ENTITIES, entities
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import MAX_BYTES, ListPage, ListQuery, Page, entity_statement, listed_text
from api_server.state.statements import Query

#: The notes that the viewer may read.
_SHOWN = (
    "notes.merge_request_id = %(merge_request_id)s AND (%(shows_internal)s::boolean OR NOT notes.internal)"
)
_BY_MOMENT = {"created_at": "created_at", "updated_at": "updated_at"}

NOTES = ListQuery(
    entities(listed_text("body"))["note"],
    f"""
    SELECT notes.* FROM notes
    WHERE {_SHOWN} AND (%(system)s::boolean IS NULL OR notes.system = %(system)s)
        AND (%(discussion_id)s::text IS NULL OR notes.discussion_id = %(discussion_id)s)
    """,
    _BY_MOMENT,
)


async def list_notes(
    database: Executor,
    page: Page,
    merge_request_id: int,
    *,
    shows_internal: bool,
    system: bool | None = None,
    discussion_id: str | None = None,
) -> ListPage:
    """Return a page of notes: by the service or by users, if `system` says which, and of one thread, if that
    is given."""
    return await NOTES.read(
        database,
        page,
        merge_request_id=merge_request_id,
        shows_internal=shows_internal,
        system=system,
        discussion_id=discussion_id,
    )


#: A thread has any number of notes, so all notes of the merge request count.
_ALL_NOTES = "SELECT sum(octet_length(body)) FROM notes WHERE merge_request_id = %(merge_request_id)s"
DISCUSSIONS = ListQuery(
    entities(listed_text("body", _ALL_NOTES))["discussion"],
    f"""
    SELECT notes.* FROM notes
    WHERE {_SHOWN} AND NOT EXISTS (
        SELECT FROM notes earlier
        WHERE earlier.merge_request_id = notes.merge_request_id AND earlier.discussion_id = notes.discussion_id
            AND earlier.id < notes.id)
    """,
    _BY_MOMENT,
)


async def list_discussions(
    database: Executor, page: Page, merge_request_id: int, *, shows_internal: bool
) -> ListPage:
    return await DISCUSSIONS.read(
        database, page, merge_request_id=merge_request_id, shows_internal=shows_internal
    )


@attrs.frozen(kw_only=True)
class Note:
    """The attributes of a note that rules need. `type` is None if the note cannot be resolved."""

    id: int
    merge_request_id: int
    discussion_id: str
    type: str | None
    author_id: int | None
    system: bool
    internal: bool
    diff_position: str | None
    resolved: bool
    #: The length of its text in bytes.
    length: int


_COLUMNS = """
    notes.id, notes.merge_request_id, notes.discussion_id, notes.type, notes.author_id, notes.system, notes.internal,
    notes.diff_position::text AS diff_position, notes.resolved_at IS NOT NULL AS resolved,
    octet_length(notes.body) AS length
"""


@statement(f"""
    SELECT {_COLUMNS} FROM notes
    WHERE {_SHOWN} AND notes.id = %(note_id)s
        AND (%(discussion_id)s::text IS NULL OR notes.discussion_id = %(discussion_id)s)
    """)
async def find(
    executor: Executor,
    merge_request_id: int,
    note_id: int,
    discussion_id: str | None,
    *,
    shows_internal: bool,
) -> Note | None:
    """Find a note, in the given thread if there is one."""


@statement(
    f"SELECT {_COLUMNS} FROM notes WHERE {_SHOWN} AND notes.discussion_id = %(discussion_id)s ORDER BY notes.id"
)
async def in_discussion(
    executor: Executor, merge_request_id: int, discussion_id: str, *, shows_internal: bool
) -> list[Note]:
    """Return all notes of a thread, the first one first."""


@statement(entity_statement(ENTITIES["note"], "SELECT notes.* FROM notes WHERE notes.id = %(note_id)s"))
async def show(database: Executor, note_id: int) -> str: ...


#: One thread, which has at most the bytes of a page.
_DISCUSSION = f"""
    SELECT thread.id, thread.position, shortened(thread.entity::text, {MAX_BYTES}) AS entity
    FROM ({entities(listed_text("body"))["discussion"]}) thread
"""


@statement(
    entity_statement(
        _DISCUSSION,
        f"""
    SELECT notes.* FROM notes WHERE {_SHOWN} AND notes.discussion_id = %(discussion_id)s
    ORDER BY notes.id LIMIT 1
    """,
    )
)
async def show_discussion(
    database: Executor, merge_request_id: int, discussion_id: str, *, shows_internal: bool
) -> str | None: ...


@statement(entity_statement(_DISCUSSION, "SELECT notes.* FROM notes WHERE notes.id = %(first_note_id)s"))
async def show_discussion_of(database: Executor, first_note_id: int) -> str:
    """Return the thread that begins with this note."""


@attrs.frozen(kw_only=True)
class Noteable:
    """The subject of notes: a merge request, the number of its notes, and the total length of their texts and positions
    in bytes."""

    id: int
    author_id: int | None
    notes: int
    length: int


LOCK = """
    SELECT merge_requests.id FROM merge_requests
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.iid = %(iid)s::bigint FOR UPDATE
"""
#: Counted after the row has been locked, so that all earlier notes are included.
NOTEABLE = Query(
    """
    SELECT merge_requests.id, merge_requests.author_id, count(notes.id) AS notes,
        coalesce(sum(octet_length(notes.body)), 0)::bigint
            + coalesce(sum(octet_length(notes.diff_position::text)), 0)::bigint AS length
    FROM merge_requests LEFT JOIN notes ON notes.merge_request_id = merge_requests.id
    WHERE merge_requests.id = %(id)s GROUP BY merge_requests.id
    """,
    Noteable,
)


async def lock(transaction: Transaction, project_id: int, iid: int) -> Noteable:
    """Lock the merge request, so that nobody else writes notes about it until the transaction ends, and
    return it. Raise NotFound."""
    merge_request_id = await transaction.value(LOCK, project_id=project_id, iid=iid)
    return await transaction.one(NOTEABLE, id=merge_request_id)


@attrs.frozen(kw_only=True)
class Subject:
    """A merge request about which the service writes notes; `version_id` is that of its newest version."""

    id: int
    iid: int
    project_id: int
    full_path: str
    target_branch: str
    base_sha: str | None
    head_sha: str
    version_id: int | None
    notes: int


@statement("""
    SELECT merge_requests.id, merge_requests.iid, merge_requests.project_id, projects.full_path,
        merge_requests.target_branch, merge_requests.base_sha, merge_requests.head_sha,
        (SELECT max(versions.id) FROM merge_request_versions versions
            WHERE versions.merge_request_id = merge_requests.id) AS version_id,
        (SELECT count(*) FROM notes WHERE notes.merge_request_id = merge_requests.id) AS notes
    FROM merge_requests JOIN projects ON projects.id = merge_requests.project_id
    WHERE merge_requests.id = %(merge_request_id)s
    """)
async def find_subject(transaction: Transaction, merge_request_id: int) -> Subject:
    """Return the merge request. Raise NotFound."""


@attrs.frozen(kw_only=True)
class NewNote:
    """A note to write: see the columns of the table. None as `created_at` means now."""

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


@statement("""
    INSERT INTO notes (merge_request_id, discussion_id, type, author_id, body, system, internal, diff_position,
        resolved_at, resolved_by_id, created_at, updated_at)
    VALUES (%(merge_request_id)s, %(discussion_id)s, %(type)s, %(author_id)s, %(body)s, %(system)s, %(internal)s,
        %(diff_position)s, CASE WHEN %(resolved)s::boolean THEN %(now)s::timestamptz END,
        CASE WHEN %(resolved)s::boolean THEN %(author_id)s::bigint END,
        coalesce(%(created_at)s, %(now)s), coalesce(%(created_at)s, %(now)s))
    RETURNING id
""")
async def insert(transaction: Transaction, new: NewNote) -> int:
    """Insert a note and return its id."""


@statement("""
    UPDATE notes SET type = 'DiscussionNote'
    WHERE merge_request_id = %(merge_request_id)s AND discussion_id = %(discussion_id)s AND type IS NULL
""")
async def make_thread(transaction: Transaction, first: Note) -> None:
    """Make a single note the first one of a thread, which can be resolved."""


@statement(
    "UPDATE notes SET body = %(body)s, updated_at = %(now)s, edited_at = %(now)s WHERE id = %(note_id)s"
)
async def edit(transaction: Transaction, note_id: int, body: str) -> None: ...


@statement("DELETE FROM notes WHERE id = %(note_id)s")
async def delete(transaction: Transaction, note_id: int) -> None: ...


RESOLVE = """
    UPDATE notes SET resolved_at = %(now)s, resolved_by_id = %(user_id)s, updated_at = %(now)s
    WHERE id = ANY (%(ids)s) AND resolved_at IS NULL
"""
UNRESOLVE = """
    UPDATE notes SET resolved_at = NULL, resolved_by_id = NULL, updated_at = %(now)s
    WHERE id = ANY (%(ids)s) AND resolved_at IS NOT NULL
"""


async def resolve(transaction: Transaction, ids: list[int], user_id: int, *, resolved: bool) -> None:
    """Mark those notes as resolved by that user, or as open again, that are not in this state yet."""
    await transaction.run(RESOLVE if resolved else UNRESOLVE, ids=ids, user_id=user_id)


@statement("UPDATE merge_requests SET updated_at = %(now)s WHERE id = %(merge_request_id)s")
async def touch(transaction: Transaction, merge_request_id: int) -> None:
    """Record that something has been written about the merge request."""
