"""`/projects/:id/merge_requests/:iid/discussions` (supporting resource)."""

import attrs
from aiohttp import web

from api_server.merge_requests import queries as merge_requests
from api_server.merge_requests.handlers import ONE
from api_server.merge_requests.notes import positions, queries, rules
from api_server.merge_requests.notes.conversation import Said, conversation
from api_server.merge_requests.notes.handlers import READ, WRITE, moment, shown_note
from api_server.merge_requests.notes.parameters import (
    CreateDiscussion,
    CreateDiscussionNote,
    ListDiscussionNotes,
    ListDiscussions,
    OneDiscussion,
    OneDiscussionNote,
    ResolveDiscussion,
    UpdateDiscussionNote,
)
from api_server.namespaces.resources import Project
from api_server.state.database import Executor
from api_server.web import context
from api_server.web.answers import json_text, no_content
from api_server.web.errors import not_found
from api_server.web.pagination import offset_page, paginated
from api_server.web.routes import Routes

routes = Routes()

DISCUSSIONS = f"{ONE}/discussions"
DISCUSSION = f"{DISCUSSIONS}/{{discussion_id}}"
NOTES = f"{DISCUSSION}/notes"
NOTE = f"{NOTES}/{{note_id}}"


@routes.get(DISCUSSIONS, access=READ)
async def list_discussions(request: web.Request, wanted: ListDiscussions, found: Project) -> web.Response:
    """Oldest first; notes by themselves are among them."""
    database = context.database(request)
    page = attrs.evolve(offset_page(wanted), order="created_at", descending=False)
    about = await merge_requests.find(database, found.id, wanted.merge_request_iid)
    shows_internal = rules.reads_internal(found)
    listed = await queries.list_discussions(database, page, about.id, shows_internal=shows_internal)
    return await paginated(request, page, listed)


@routes.get(DISCUSSION, access=READ)
async def show_discussion(request: web.Request, wanted: OneDiscussion, found: Project) -> web.Response:
    database = context.database(request)
    about = await merge_requests.find(database, found.id, wanted.merge_request_iid)
    return json_text(await _shown(database, found, about.id, wanted.discussion_id))


@routes.post(DISCUSSIONS, access=WRITE)
async def create_discussion(request: web.Request, wanted: CreateDiscussion, found: Project) -> web.Response:
    """A thread; with a `position` about a line of what the merge request changes."""
    rules.check_body(wanted.body)
    await merge_requests.find(context.database(request), found.id, wanted.merge_request_iid)
    place = await positions.checked(request, found.id, wanted.position) if wanted.position else None
    said = Said(
        body=wanted.body,
        begins_thread=True,
        diff_position=place,
        created_at=moment(request, found, wanted.created_at),
    )
    async with context.database(request).transaction() as transaction:
        talk = await conversation(request, transaction, found, wanted.merge_request_iid)
        shown = await queries.show_discussion_of(transaction, await talk.write(said))
    return json_text(shown, status=201)


@routes.put(DISCUSSION, access=WRITE)
async def resolve_discussion(request: web.Request, wanted: ResolveDiscussion, found: Project) -> web.Response:
    async with context.database(request).transaction() as transaction:
        talk = await conversation(request, transaction, found, wanted.merge_request_iid)
        await talk.resolve_thread(wanted.discussion_id, resolved=wanted.resolved)
        shown = await _shown(transaction, found, talk.about.id, wanted.discussion_id)
    return json_text(shown)


@routes.get(NOTES, access=READ)
async def list_discussion_notes(
    request: web.Request, wanted: ListDiscussionNotes, found: Project
) -> web.Response:
    """Oldest first."""
    database = context.database(request)
    page = attrs.evolve(offset_page(wanted), order="created_at", descending=False)
    about = await merge_requests.find(database, found.id, wanted.merge_request_iid)
    listed = await queries.list_notes(
        database,
        page,
        about.id,
        shows_internal=rules.reads_internal(found),
        discussion_id=wanted.discussion_id,
    )
    if not listed.total:
        raise not_found("Notes")
    return await paginated(request, page, listed)


@routes.get(NOTE, access=READ)
async def show_discussion_note(
    request: web.Request, wanted: OneDiscussionNote, found: Project
) -> web.Response:
    return await shown_note(request, found, wanted.merge_request_iid, wanted.note_id, wanted.discussion_id)


@routes.post(NOTES, access=WRITE)
async def create_discussion_note(
    request: web.Request, wanted: CreateDiscussionNote, found: Project
) -> web.Response:
    said = Said(body=wanted.body, created_at=moment(request, found, wanted.created_at))
    async with context.database(request).transaction() as transaction:
        talk = await conversation(request, transaction, found, wanted.merge_request_iid)
        shown = await queries.show(transaction, await talk.reply(wanted.discussion_id, said))
    return json_text(shown, status=201)


@routes.put(NOTE, access=WRITE)
async def update_discussion_note(
    request: web.Request, wanted: UpdateDiscussionNote, found: Project
) -> web.Response:
    """Either its text, or whether it is resolved."""
    thread, note_id = wanted.discussion_id, wanted.note_id
    async with context.database(request).transaction() as transaction:
        talk = await conversation(request, transaction, found, wanted.merge_request_iid)
        if wanted.resolved is None:
            await talk.edit(note_id, wanted.body, thread)
        else:
            await talk.resolve_note(thread, note_id, resolved=wanted.resolved)
        shown = await queries.show(transaction, note_id)
    return json_text(shown)


@routes.delete(NOTE, access=WRITE)
async def delete_discussion_note(
    request: web.Request, wanted: OneDiscussionNote, found: Project
) -> web.Response:
    async with context.database(request).transaction() as transaction:
        talk = await conversation(request, transaction, found, wanted.merge_request_iid)
        await talk.delete(wanted.note_id, wanted.discussion_id)
    return no_content()


async def _shown(database: Executor, found: Project, merge_request_id: int, discussion_id: str) -> str:
    """Raises 404."""
    shows_internal = rules.reads_internal(found)
    shown = await queries.show_discussion(
        database, merge_request_id, discussion_id, shows_internal=shows_internal
    )
    if shown is None:
        raise not_found("Discussion")
    return shown
