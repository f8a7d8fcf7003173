"""What a caller says of a merge request: notes written, edited, deleted and resolved."""

import datetime
import secrets

import attrs
from aiohttp import web

from api_server.merge_requests.merging.auto_merge import look_again
from api_server.merge_requests.notes import change_queries, queries, rules
from api_server.merge_requests.notes.change_queries import NewNote, Noteable
from api_server.merge_requests.notes.queries import Note
from api_server.namespaces.resources import Project
from api_server.settings import Settings
from api_server.state.database import Transaction
from api_server.web import context
from api_server.web.errors import bad_request, forbidden, not_found, record_not_found
from api_server.web.routes import caller


@attrs.frozen(kw_only=True)
class Said:
    """A text, for members only where it is `internal`. With a `diff_position` (JSON) it is about a line, and begins a
    thread, as it does where `begins_thread` says so."""

    body: str
    internal: bool = False
    begins_thread: bool = False
    diff_position: str | None = None
    created_at: datetime.datetime | None = None


async def conversation(
    request: web.Request, transaction: Transaction, project: Project, iid: int
) -> "Conversation":
    """That about the merge request, in which nobody else says anything until the transaction ends. Raises NotFound."""
    about = await change_queries.lock(transaction, project.id, iid)
    return Conversation(transaction, project, about, caller(request).user_id, context.settings(request))


def new_discussion_id() -> str:
    return secrets.token_hex(20)


@attrs.frozen
class Conversation:
    """The caller's part in what is said of one merge request. What she may not read is not there: 404."""

    _transaction: Transaction
    _project: Project
    about: Noteable
    _user_id: int
    _settings: Settings

    async def write(self, said: Said) -> int:
        """The id of the new note. Raises 400, and 403 for internal notes of others than members."""
        rules.check_body(said.body)
        if said.internal and not rules.reads_internal(self._project):
            raise forbidden()
        new = NewNote(
            merge_request_id=self.about.id,
            discussion_id=new_discussion_id(),
            author_id=self._user_id,
            body=said.body,
            type="DiffNote" if said.diff_position else "DiscussionNote" if said.begins_thread else None,
            internal=said.internal,
            diff_position=said.diff_position,
            created_at=said.created_at,
        )
        return await self._add(new)

    async def reply(self, discussion_id: str, said: Said) -> int:
        """The id of one more note of a thread: as internal, as resolved, and about the same line as that. What was a
        note by itself becomes the first one of a thread. Raises 404 and 400."""
        rules.check_body(said.body)
        thread = await self._thread(discussion_id)
        first = thread[0]
        if first.system:
            raise bad_request("Discussion can not be replied to.")
        await change_queries.make_thread(self._transaction, first)
        new = NewNote(
            merge_request_id=self.about.id,
            discussion_id=discussion_id,
            author_id=self._user_id,
            body=said.body,
            type=first.type or "DiscussionNote",
            internal=first.internal,
            diff_position=first.diff_position,
            resolved=all(note.resolved for note in thread),
            created_at=said.created_at,
        )
        return await self._add(new)

    async def _add(self, new: NewNote) -> int:
        rules.check_room(self.about, self._settings, new.body)
        note_id = await change_queries.insert(self._transaction, new)
        await change_queries.touch(self._transaction, self.about.id)
        return note_id

    async def edit(self, note_id: int, body: str | None, discussion_id: str | None = None) -> None:
        """Without a new body the note stays as it is. Raises 404, 403 and 400."""
        note = await self._changeable(note_id, discussion_id)
        if body is None:
            return
        rules.check_body(body)
        rules.check_room(self.about, self._settings, body, instead_of=note)
        await change_queries.edit(self._transaction, note.id, body)
        await change_queries.touch(self._transaction, self.about.id)

    async def delete(self, note_id: int, discussion_id: str | None = None) -> None:
        """Raises 404 and 403."""
        note = await self._changeable(note_id, discussion_id)
        await change_queries.delete(self._transaction, note.id)
        await change_queries.touch(self._transaction, self.about.id)
        await look_again(self._transaction, self.about.id)

    async def resolve_note(self, discussion_id: str, note_id: int, *, resolved: bool) -> None:
        """Raises 404, 403, and 400 for what cannot be resolved."""
        note = await self._note(note_id, discussion_id)
        if not rules.may_resolve(self._project, self.about, note, self._user_id):
            raise forbidden()
        if note.type is None:
            raise bad_request("Note is not resolvable")
        await self._resolve([note], resolved=resolved)

    async def resolve_thread(self, discussion_id: str, *, resolved: bool) -> None:
        """All notes of it. Raises 404, and 403 also for what cannot be resolved."""
        thread = await self._thread(discussion_id)
        may = rules.may_resolve(self._project, self.about, None, self._user_id)
        if thread[0].type is None or not may:
            raise forbidden()
        await self._resolve(thread, resolved=resolved)

    async def _resolve(self, notes: list[Note], *, resolved: bool) -> None:
        ids = [note.id for note in notes]
        await change_queries.resolve(self._transaction, ids, self._user_id, resolved=resolved)
        if resolved:
            await look_again(self._transaction, self.about.id)
        await change_queries.touch(self._transaction, self.about.id)

    async def _changeable(self, note_id: int, discussion_id: str | None) -> Note:
        note = await self._note(note_id, discussion_id)
        if not rules.may_change(self._project, note, self._user_id):
            raise forbidden()
        return note

    async def _note(self, note_id: int, discussion_id: str | None) -> Note:
        """In that thread, where one is named."""
        shows_internal = rules.reads_internal(self._project)
        found = await queries.find(
            self._transaction, self.about.id, note_id, discussion_id, shows_internal=shows_internal
        )
        if found is None:
            raise record_not_found()
        return found

    async def _thread(self, discussion_id: str) -> list[Note]:
        shows_internal = rules.reads_internal(self._project)
        found = await queries.in_discussion(
            self._transaction, self.about.id, discussion_id, shows_internal=shows_internal
        )
        if not found:
            raise not_found("Discussion")
        return found
