"""Notes and threads about a merge request (supporting resources)."""

import datetime
from typing import Literal

import attrs
from aiohttp import web

from api_server.merge_requests import note_queries, notes, queries
from api_server.merge_requests.handlers import ONE, ListContents, MergeRequestId
from api_server.merge_requests.notes import NoteDraft, Position, open_conversation
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.web import unsupported
from api_server.web.answers import json_text, no_content
from api_server.web.auth import Actor
from api_server.web.errors import not_found, record_not_found
from api_server.web.pagination import offset_page, paginated, requested_page
from api_server.web.routes import Routes


@attrs.frozen(kw_only=True)
class ListNotes(ListContents):
    activity_filter: Literal["all_notes", "only_comments", "only_activity"] = "all_notes"

    @property
    def system(self) -> bool | None:
        """Which notes to list: the service's, users', or (None) both."""
        return None if self.activity_filter == "all_notes" else self.activity_filter == "only_activity"


@attrs.frozen(kw_only=True)
class OneNote(MergeRequestId):
    note_id: int


@attrs.frozen(kw_only=True)
class CreateNote(MergeRequestId):
    body: str
    internal: bool = False
    #: The former name of `internal`.
    confidential: bool = False
    created_at: datetime.datetime | None = None


@attrs.frozen(kw_only=True)
class UpdateNote(OneNote):
    body: str | None = attrs.field(default=None, metadata={"present": True})


@attrs.frozen(kw_only=True)
class OneDiscussion(MergeRequestId):
    discussion_id: str


@attrs.frozen(kw_only=True)
class CreateDiscussion(MergeRequestId):
    body: str
    position: Position | None = None
    created_at: datetime.datetime | None = None


@attrs.frozen(kw_only=True)
class ResolveDiscussion(OneDiscussion):
    resolved: bool


@attrs.frozen(kw_only=True)
class ListDiscussionNotes(ListContents):
    discussion_id: str


@attrs.frozen(kw_only=True)
class CreateDiscussionNote(OneDiscussion):
    body: str
    created_at: datetime.datetime | None = None


@attrs.frozen(kw_only=True)
class OneDiscussionNote(OneDiscussion):
    note_id: int


@attrs.frozen(kw_only=True)
class UpdateDiscussionNote(OneDiscussionNote):
    """A change of a note: one of the two has to be given."""

    body: str | None = None
    resolved: bool | None = None

    def __attrs_post_init__(self) -> None:
        fields = [name for name in ("body", "resolved") if getattr(self, name) is not None]
        if len(fields) > 1:
            raise ValueError("body, resolved are mutually exclusive")
        if not fields:
            raise ValueError("body, resolved are missing, exactly one parameter must be provided")


routes = Routes()

NOTES = f"{ONE}/notes"
NOTE = f"{NOTES}/{{note_id}}"
#: Everybody who can read a merge request may write notes.
READ = project(feature="repository")
WRITE = project(feature="repository", changes=True)


@routes.get(NOTES, access=READ, answers="200 [Note]")
async def list_notes(
    request: web.Request, services: Services, params: ListNotes, project: Project
) -> web.Response:
    """List the notes about a merge request, including those of the service, newest first."""
    database = services.database
    page = requested_page(params, note_queries.NOTES, default_order="created_at")
    about = await queries.find(database, project.id, params.merge_request_iid)
    shows_internal = notes.reads_internal(project)
    rows = await note_queries.list_notes(
        database, page, about.id, shows_internal=shows_internal, system=params.system
    )
    return await paginated(request, page, rows)


@routes.get(NOTE, access=READ, answers="200 Note")
async def show_note(services: Services, params: OneNote, project: Project) -> web.Response:
    return await shown_note(services, project, params.merge_request_iid, params.note_id)


@routes.post(NOTES, access=WRITE, answers="201 Note")
async def create_note(
    request: web.Request, services: Services, actor: Actor, params: CreateNote, project: Project
) -> web.Response:
    draft = NoteDraft(
        body=params.body,
        internal=params.internal or params.confidential,
        created_at=moment(request, project, params.created_at),
    )
    async with open_conversation(services, actor, project, params.merge_request_iid) as conversation:
        entity = await conversation.show(await conversation.write(draft))
    return json_text(entity, status=201)


@routes.put(NOTE, access=WRITE, answers="200 Note")
async def update_note(services: Services, actor: Actor, params: UpdateNote, project: Project) -> web.Response:
    async with open_conversation(services, actor, project, params.merge_request_iid) as conversation:
        await conversation.edit(params.note_id, params.body)
        entity = await conversation.show(params.note_id)
    return json_text(entity)


@routes.delete(NOTE, access=WRITE, answers="204")
async def delete_note(services: Services, actor: Actor, params: OneNote, project: Project) -> web.Response:
    async with open_conversation(services, actor, project, params.merge_request_iid) as conversation:
        await conversation.delete(params.note_id)
    return no_content()


async def shown_note(
    services: Services, project: Project, iid: int, note_id: int, discussion_id: str | None = None
) -> web.Response:
    """Answer a note that the caller may read, in the given thread if there is one. Raise 404."""
    database = services.database
    about = await queries.find(database, project.id, iid)
    shows_internal = notes.reads_internal(project)
    if (
        await note_queries.find(database, about.id, note_id, discussion_id, shows_internal=shows_internal)
        is None
    ):
        raise record_not_found()
    return json_text(await note_queries.show(database, note_id))


def moment(
    request: web.Request, project: Project, created_at: datetime.datetime | None
) -> datetime.datetime | None:
    """Return the given creation time of a note if the caller may set it, otherwise None; the answer then
    names the parameter as ignored."""
    if created_at is not None and not notes.may_date(project):
        unsupported.ignore(request, "created_at")
        return None
    return created_at


DISCUSSIONS = f"{ONE}/discussions"
DISCUSSION = f"{DISCUSSIONS}/{{discussion_id}}"
DISCUSSION_NOTES = f"{DISCUSSION}/notes"
DISCUSSION_NOTE = f"{DISCUSSION_NOTES}/{{note_id}}"


@routes.get(DISCUSSIONS, access=READ, answers="200 [Discussion]")
async def list_discussions(
    request: web.Request, services: Services, params: ListContents, project: Project
) -> web.Response:
    """List the threads about a merge request, including single notes, oldest first."""
    database = services.database
    page = attrs.evolve(offset_page(params), order="created_at", descending=False)
    about = await queries.find(database, project.id, params.merge_request_iid)
    shows_internal = notes.reads_internal(project)
    rows = await note_queries.list_discussions(database, page, about.id, shows_internal=shows_internal)
    return await paginated(request, page, rows)


@routes.get(DISCUSSION, access=READ, answers="200 Discussion")
async def show_discussion(services: Services, params: OneDiscussion, project: Project) -> web.Response:
    database = services.database
    about = await queries.find(database, project.id, params.merge_request_iid)
    return json_text(await notes.show_thread(database, project, about.id, params.discussion_id))


@routes.post(DISCUSSIONS, access=WRITE, answers="201 Discussion")
async def create_discussion(
    request: web.Request, services: Services, actor: Actor, params: CreateDiscussion, project: Project
) -> web.Response:
    """Start a thread; with a `position`, about a line of the changes."""
    notes.check_note_body(params.body)
    await queries.find(services.database, project.id, params.merge_request_iid)
    position = (
        await notes.checked_position(services, actor, project.id, params.position)
        if params.position
        else None
    )
    draft = NoteDraft(
        body=params.body,
        begins_thread=True,
        diff_position=position,
        created_at=moment(request, project, params.created_at),
    )
    async with open_conversation(services, actor, project, params.merge_request_iid) as conversation:
        entity = await conversation.show_thread_of(await conversation.write(draft))
    return json_text(entity, status=201)


@routes.put(DISCUSSION, access=WRITE, answers="200 Discussion")
async def resolve_discussion(
    services: Services, actor: Actor, params: ResolveDiscussion, project: Project
) -> web.Response:
    async with open_conversation(services, actor, project, params.merge_request_iid) as conversation:
        await conversation.resolve_thread(params.discussion_id, resolved=params.resolved)
        entity = await conversation.show_thread(params.discussion_id)
    return json_text(entity)


@routes.get(DISCUSSION_NOTES, access=READ, answers="200 [Note]")
async def list_discussion_notes(
    request: web.Request, services: Services, params: ListDiscussionNotes, project: Project
) -> web.Response:
    """List the notes of a thread, oldest first."""
    database = services.database
    page = attrs.evolve(offset_page(params), order="created_at", descending=False)
    about = await queries.find(database, project.id, params.merge_request_iid)
    rows = await note_queries.list_notes(
        database,
        page,
        about.id,
        shows_internal=notes.reads_internal(project),
        discussion_id=params.discussion_id,
    )
    if not rows.total:
        raise not_found("Notes")
    return await paginated(request, page, rows)


@routes.get(DISCUSSION_NOTE, access=READ, answers="200 Note")
async def show_discussion_note(
    services: Services, params: OneDiscussionNote, project: Project
) -> web.Response:
    return await shown_note(services, project, params.merge_request_iid, params.note_id, params.discussion_id)


@routes.post(DISCUSSION_NOTES, access=WRITE, answers="201 Note")
async def create_discussion_note(
    request: web.Request, services: Services, actor: Actor, params: CreateDiscussionNote, project: Project
) -> web.Response:
    draft = NoteDraft(body=params.body, created_at=moment(request, project, params.created_at))
    async with open_conversation(services, actor, project, params.merge_request_iid) as conversation:
        entity = await conversation.show(await conversation.reply(params.discussion_id, draft))
    return json_text(entity, status=201)


@routes.put(DISCUSSION_NOTE, access=WRITE, answers="200 Note")
async def update_discussion_note(
    services: Services, actor: Actor, params: UpdateDiscussionNote, project: Project
) -> web.Response:
    """Change the text of a note, or resolve or reopen it."""
    thread, note_id = params.discussion_id, params.note_id
    async with open_conversation(services, actor, project, params.merge_request_iid) as conversation:
        if params.resolved is None:
            await conversation.edit(note_id, params.body, thread)
        else:
            await conversation.resolve_note(thread, note_id, resolved=params.resolved)
        entity = await conversation.show(note_id)
    return json_text(entity)


@routes.delete(DISCUSSION_NOTE, access=WRITE, answers="204")
async def delete_discussion_note(
    services: Services, actor: Actor, params: OneDiscussionNote, project: Project
) -> web.Response:
    async with open_conversation(services, actor, project, params.merge_request_iid) as conversation:
        await conversation.delete(params.note_id, params.discussion_id)
    return no_content()
