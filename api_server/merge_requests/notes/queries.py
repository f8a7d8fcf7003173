"""Statements that read notes."""

import attrs

from api_server.state.database import Executor
from api_server.state.listing import Listed, Listing, Page, one, read_sql
from api_server.state.statements import Query

ENTITIES = read_sql("api_server.merge_requests.notes")

#: Those that the viewer may read.
_SHOWN = (
    "notes.merge_request_id = %(merge_request_id)s AND (%(shows_internal)s::boolean OR NOT notes.internal)"
)
_BY_MOMENT = {"created_at": "created_at", "updated_at": "updated_at"}

NOTES = Listing(
    ENTITIES["note"],
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
) -> Listed:
    """Those by the service or by users, where `system` says which; those of one thread, where that is given."""
    return await NOTES.read(
        database,
        page,
        merge_request_id=merge_request_id,
        shows_internal=shows_internal,
        system=system,
        discussion_id=discussion_id,
    )


DISCUSSIONS = Listing(
    ENTITIES["discussion"],
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
) -> Listed:
    return await DISCUSSIONS.read(
        database, page, merge_request_id=merge_request_id, shows_internal=shows_internal
    )


@attrs.frozen(kw_only=True)
class Note:
    """A note, as far as rules look at it. `type` is None for what cannot be resolved."""

    id: int
    merge_request_id: int
    discussion_id: str
    type: str | None
    author_id: int | None
    system: bool
    internal: bool
    diff_position: str | None
    resolved: bool
    #: Of its text, in bytes.
    length: int


_COLUMNS = """
    notes.id, notes.merge_request_id, notes.discussion_id, notes.type, notes.author_id, notes.system, notes.internal,
    notes.diff_position::text AS diff_position, notes.resolved_at IS NOT NULL AS resolved,
    octet_length(notes.body) AS length
"""

FIND = Query(
    f"""
    SELECT {_COLUMNS} FROM notes
    WHERE {_SHOWN} AND notes.id = %(note_id)s
        AND (%(discussion_id)s::text IS NULL OR notes.discussion_id = %(discussion_id)s)
    """,
    Note,
)


async def find(
    executor: Executor,
    merge_request_id: int,
    note_id: int,
    discussion_id: str | None,
    *,
    shows_internal: bool,
) -> Note | None:
    """In that thread, where one is named."""
    return await executor.row(
        FIND,
        merge_request_id=merge_request_id,
        note_id=note_id,
        discussion_id=discussion_id,
        shows_internal=shows_internal,
    )


IN_DISCUSSION = Query(
    f"SELECT {_COLUMNS} FROM notes WHERE {_SHOWN} AND notes.discussion_id = %(discussion_id)s ORDER BY notes.id",
    Note,
)


async def in_discussion(
    executor: Executor, merge_request_id: int, discussion_id: str, *, shows_internal: bool
) -> list[Note]:
    """All notes of a thread, the first one first."""
    return await executor.rows(
        IN_DISCUSSION,
        merge_request_id=merge_request_id,
        discussion_id=discussion_id,
        shows_internal=shows_internal,
    )


SHOW = one(ENTITIES["note"], "SELECT notes.* FROM notes WHERE notes.id = %(id)s")


async def show(database: Executor, note_id: int) -> str:
    return await database.entity(SHOW, id=note_id)


SHOW_DISCUSSION = one(
    ENTITIES["discussion"],
    f"""
    SELECT notes.* FROM notes WHERE {_SHOWN} AND notes.discussion_id = %(discussion_id)s
    ORDER BY notes.id LIMIT 1
    """,
)


async def show_discussion(
    database: Executor, merge_request_id: int, discussion_id: str, *, shows_internal: bool
) -> str | None:
    return await database.entity_if_there(
        SHOW_DISCUSSION,
        merge_request_id=merge_request_id,
        discussion_id=discussion_id,
        shows_internal=shows_internal,
    )


SHOW_DISCUSSION_OF = one(ENTITIES["discussion"], "SELECT notes.* FROM notes WHERE notes.id = %(id)s")


async def show_discussion_of(database: Executor, first_note_id: int) -> str:
    """The thread that begins with this note."""
    return await database.entity(SHOW_DISCUSSION_OF, id=first_note_id)
