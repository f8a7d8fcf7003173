"""Notes of users about a merge request: the rights to write, edit and resolve them, and the line that a note
is about."""

import contextlib
import datetime
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Literal

import attrs
import orjson

from api_server.code.reading import reading
from api_server.git.diffs import Line, has_line
from api_server.git.repositories import REPOSITORIES
from api_server.merge_requests import note_queries
from api_server.merge_requests.merging import retry_auto_merge
from api_server.merge_requests.note_queries import NewNote, Note, Noteable
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.settings import Settings
from api_server.state.database import Executor, Transaction
from api_server.web.auth import Actor
from api_server.web.errors import (
    ApiError,
    bad_parameters,
    bad_request,
    forbidden,
    not_found,
    record_not_found,
)
from api_server.web.params import AtMost, Name
from api_server.web.routes import Role

#: Characters.
MAX_BODY = 1_000_000


def not_saved(problems: Mapping[str, Sequence[str]]) -> ApiError:
    """Return 400 in GitLab's words, which are Ruby's: `Note {:note=>["can't be blank"]}`."""
    messages = ", ".join(
        f":{field}=>[{', '.join(orjson.dumps(text).decode() for text in texts)}]"
        for field, texts in problems.items()
    )
    return bad_request(f"Note {{{messages}}}")


def check_note_body(body: str) -> None:
    """Raise 400 for a blank or too long text."""
    if not body.strip():
        raise not_saved({"note": ["can't be blank"]})
    if len(body) > MAX_BODY:
        raise not_saved({"note": [f"is too long (maximum is {MAX_BODY} characters)"]})


def check_limits(about: Noteable, settings: Settings, body: str, instead_of: Note | None = None) -> None:
    """Raise 400 if one more note, or a longer text in place of another, exceeds the limits of a merge
    request."""
    if instead_of is None and about.notes >= settings.notes_limit:
        raise not_saved({"base": ["Maximum number of comments exceeded"]})
    length = about.length + len(body.encode()) - (instead_of.length if instead_of else 0)
    if length > max(settings.notes_size_limit, about.length):
        raise not_saved(
            {"base": [f"Comments are too large together (maximum is {settings.notes_size_limit} bytes)"]}
        )


def reads_internal(project: Project) -> bool:
    """Return whether the caller may read and write notes that are for members only."""
    return project.role >= Role.REPORTER


def may_date(project: Project) -> bool:
    """Return whether the caller may set the creation time of a note."""
    return project.role >= Role.OWNER


def may_change(project: Project, note: Note, user_id: int) -> bool:
    """Return whether the caller may edit and delete the note: its author and Maintainers may; nobody may for
    notes of the service."""
    return not note.system and (note.author_id == user_id or project.role >= Role.MAINTAINER)


def may_resolve(project: Project, about: Noteable, note: Note | None, user_id: int) -> bool:
    """Return whether the caller may resolve a note (or, for None, a whole thread): Developers, the author of
    the merge request, and the author of the note may."""
    is_author = about.author_id == user_id or (note is not None and note.author_id == user_id)
    return is_author or project.role >= Role.DEVELOPER


FilePath = Annotated[str, AtMost(4096)]


@attrs.frozen(kw_only=True)
class EndOfRange:
    line_code: Name | None = None
    type: Literal["new", "old", "expanded"] | None = None
    old_line: int | None = None
    new_line: int | None = None


@attrs.frozen(kw_only=True)
class LineRange:
    start: EndOfRange | None = None
    end: EndOfRange | None = None


@attrs.frozen(kw_only=True)
class Position:
    """The `position` of a note: a line (its number before, after, or both) of a file, between the commits
    `base_sha` and `head_sha`, as given in the merge request's versions and `diff_refs`."""

    base_sha: Name
    start_sha: Name
    head_sha: Name
    position_type: Literal["text", "image", "file"]
    old_path: FilePath | None = None
    new_path: FilePath | None = None
    old_line: int | None = None
    new_line: int | None = None
    line_range: LineRange | None = None


async def checked_position(services: Services, actor: Actor, project_id: int, position: Position) -> str:
    """Return the position's JSON. Raise 400 in GitLab's words if the difference has no such line."""
    if position.position_type != "text":
        raise bad_parameters(
            f"position[position_type] {position.position_type} is not supported by this service"
        )
    line = Line(
        old_path=position.old_path,
        new_path=position.new_path,
        old_line=position.old_line,
        new_line=position.new_line,
    )
    largest = services.settings.diff_max_patch_bytes
    async with reading(services, actor):
        repository = services[REPOSITORIES].open(project_id)
        exists = await has_line(repository, position.base_sha, position.head_sha, line, largest=largest)
    if not exists:
        raise _refused(position)
    return _position_json(position)


def _refused(position: Position) -> Exception:
    problems = {"line_code": ["can't be blank", "must be a valid line code"]}
    if position.old_line is None and position.new_line is None:
        problems["position"] = ["is incomplete"]
    return not_saved(problems)


def _position_json(position: Position) -> str:
    names = ("base_sha", "start_sha", "head_sha", "old_path", "new_path", "position_type")
    values = {name: getattr(position, name) for name in (*names, "old_line", "new_line")}
    spanned = position.line_range
    return orjson.dumps(values | {"line_range": attrs.asdict(spanned) if spanned else None}).decode()


@attrs.frozen(kw_only=True)
class NoteDraft:
    """A text, for members only if it is `internal`. With a `diff_position` (JSON) it is about a line and
    begins a thread; with `begins_thread` it begins a thread as well."""

    body: str
    internal: bool = False
    begins_thread: bool = False
    diff_position: str | None = None
    created_at: datetime.datetime | None = None


@contextlib.asynccontextmanager
async def open_conversation(
    services: Services, actor: Actor, project: Project, iid: int
) -> AsyncIterator["Conversation"]:
    """Open a transaction in which only `actor` writes about the merge request. Raise NotFound."""
    async with services.database.transaction() as transaction:
        about = await note_queries.lock(transaction, project.id, iid)
        yield Conversation(transaction, project, about, actor.user_id, services.settings)


async def show_thread(database: Executor, project: Project, merge_request_id: int, discussion_id: str) -> str:
    """Return a thread as the API shows it. Raise 404 if there is none that the caller may read."""
    entity = await note_queries.show_discussion(
        database, merge_request_id, discussion_id, shows_internal=reads_internal(project)
    )
    if entity is None:
        raise not_found("Discussion")
    return entity


def new_discussion_id() -> str:
    return secrets.token_hex(20)


@attrs.frozen
class Conversation:
    """The notes of one merge request from the caller's view. Notes that the caller may not read do not exist:
    404."""

    _transaction: Transaction
    _project: Project
    about: Noteable
    _user_id: int
    _settings: Settings

    async def show(self, note_id: int) -> str:
        """Return a note as the API shows it."""
        return await note_queries.show(self._transaction, note_id)

    async def show_thread_of(self, note_id: int) -> str:
        """Return the thread that this note begins."""
        return await note_queries.show_discussion_of(self._transaction, note_id)

    async def show_thread(self, discussion_id: str) -> str:
        """Return a thread. Raise 404."""
        return await show_thread(self._transaction, self._project, self.about.id, discussion_id)

    async def write(self, draft: NoteDraft) -> int:
        """Write a note and return its id. Raise 400, and 403 for internal notes of callers who are not
        members."""
        check_note_body(draft.body)
        if draft.internal and not reads_internal(self._project):
            raise forbidden()
        new = NewNote(
            merge_request_id=self.about.id,
            discussion_id=new_discussion_id(),
            author_id=self._user_id,
            body=draft.body,
            type="DiffNote" if draft.diff_position else "DiscussionNote" if draft.begins_thread else None,
            internal=draft.internal,
            diff_position=draft.diff_position,
            created_at=draft.created_at,
        )
        return await self._add(new)

    async def reply(self, discussion_id: str, draft: NoteDraft) -> int:
        """Add a note to a thread and return its id: it is as internal and as resolved as the thread, and
        about the same line. A single note becomes the first one of a thread. Raise 404 and 400."""
        check_note_body(draft.body)
        thread = await self._thread(discussion_id)
        first = thread[0]
        if first.system:
            raise bad_request("Discussion can not be replied to.")
        await note_queries.make_thread(self._transaction, first)
        new = NewNote(
            merge_request_id=self.about.id,
            discussion_id=discussion_id,
            author_id=self._user_id,
            body=draft.body,
            type=first.type or "DiscussionNote",
            internal=first.internal,
            diff_position=first.diff_position,
            resolved=all(note.resolved for note in thread),
            created_at=draft.created_at,
        )
        return await self._add(new)

    async def _add(self, new: NewNote) -> int:
        check_limits(self.about, self._settings, new.body + (new.diff_position or ""))
        note_id = await note_queries.insert(self._transaction, new)
        await note_queries.touch(self._transaction, self.about.id)
        return note_id

    async def edit(self, note_id: int, body: str | None, discussion_id: str | None = None) -> None:
        """Edit a note; without a new body it stays unchanged. Raise 404, 403 and 400."""
        note = await self._changeable(note_id, discussion_id)
        if body is None:
            return
        check_note_body(body)
        check_limits(self.about, self._settings, body, instead_of=note)
        await note_queries.edit(self._transaction, note.id, body)
        await note_queries.touch(self._transaction, self.about.id)

    async def delete(self, note_id: int, discussion_id: str | None = None) -> None:
        """Delete a note. Raise 404 and 403."""
        note = await self._changeable(note_id, discussion_id)
        await note_queries.delete(self._transaction, note.id)
        await note_queries.touch(self._transaction, self.about.id)
        await retry_auto_merge(self._transaction, self.about.id)

    async def resolve_note(self, discussion_id: str, note_id: int, *, resolved: bool) -> None:
        """Resolve or reopen a note. Raise 404, 403, and 400 if it cannot be resolved."""
        note = await self._note(note_id, discussion_id)
        if not may_resolve(self._project, self.about, note, self._user_id):
            raise forbidden()
        if note.type is None:
            raise bad_request("Note is not resolvable")
        await self._resolve([note], resolved=resolved)

    async def resolve_thread(self, discussion_id: str, *, resolved: bool) -> None:
        """Resolve or reopen all notes of a thread. Raise 404 and 403, also if it cannot be resolved."""
        thread = await self._thread(discussion_id)
        may = may_resolve(self._project, self.about, None, self._user_id)
        if thread[0].type is None or not may:
            raise forbidden()
        await self._resolve(thread, resolved=resolved)

    async def _resolve(self, notes: list[Note], *, resolved: bool) -> None:
        ids = [note.id for note in notes]
        await note_queries.resolve(self._transaction, ids, self._user_id, resolved=resolved)
        if resolved:
            await retry_auto_merge(self._transaction, self.about.id)
        await note_queries.touch(self._transaction, self.about.id)

    async def _changeable(self, note_id: int, discussion_id: str | None) -> Note:
        note = await self._note(note_id, discussion_id)
        if not may_change(self._project, note, self._user_id):
            raise forbidden()
        return note

    async def _note(self, note_id: int, discussion_id: str | None) -> Note:
        """Return a note, in the given thread if there is one. Raise 404."""
        shows_internal = reads_internal(self._project)
        note = await note_queries.find(
            self._transaction, self.about.id, note_id, discussion_id, shows_internal=shows_internal
        )
        if note is None:
            raise record_not_found()
        return note

    async def _thread(self, discussion_id: str) -> list[Note]:
        shows_internal = reads_internal(self._project)
        notes = await note_queries.in_discussion(
            self._transaction, self.about.id, discussion_id, shows_internal=shows_internal
        )
        if not notes:
            raise not_found("Discussion")
        return notes
