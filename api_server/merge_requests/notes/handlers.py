"""`/projects/:id/merge_requests/:iid/notes` (supporting resource)."""

import datetime

from aiohttp import web

from api_server.merge_requests import queries as merge_requests
from api_server.merge_requests.handlers import ONE
from api_server.merge_requests.notes import queries, rules
from api_server.merge_requests.notes.conversation import Said, conversation
from api_server.merge_requests.notes.parameters import (
    CreateNote,
    ListNotes,
    OneNote,
    UpdateNote,
)
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.web import context, unsupported
from api_server.web.answers import json_text, no_content
from api_server.web.errors import record_not_found
from api_server.web.pagination import paginated, wanted_page
from api_server.web.routes import Routes

routes = Routes()

NOTES = f"{ONE}/notes"
NOTE = f"{NOTES}/{{note_id}}"
#: Everybody who reads a merge request may say something.
READ = project(opens="repository")
WRITE = project(opens="repository", changes=True)


@routes.get(NOTES, access=READ)
async def list_notes(request: web.Request, wanted: ListNotes, found: Project) -> web.Response:
    """Newest first, those of the service among them."""
    database = context.database(request)
    page = wanted_page(wanted, queries.NOTES, default_order="created_at")
    about = await merge_requests.find(database, found.id, wanted.merge_request_iid)
    shows_internal = rules.reads_internal(found)
    listed = await queries.list_notes(
        database, page, about.id, shows_internal=shows_internal, system=wanted.system
    )
    return await paginated(request, page, listed)


@routes.get(NOTE, access=READ)
async def show_note(request: web.Request, wanted: OneNote, found: Project) -> web.Response:
    return await shown_note(request, found, wanted.merge_request_iid, wanted.note_id)


@routes.post(NOTES, access=WRITE)
async def create_note(request: web.Request, wanted: CreateNote, found: Project) -> web.Response:
    said = Said(
        body=wanted.body,
        internal=wanted.internal or wanted.confidential,
        created_at=moment(request, found, wanted.created_at),
    )
    async with context.database(request).transaction() as transaction:
        talk = await conversation(request, transaction, found, wanted.merge_request_iid)
        shown = await queries.show(transaction, await talk.write(said))
    return json_text(shown, status=201)


@routes.put(NOTE, access=WRITE)
async def update_note(request: web.Request, wanted: UpdateNote, found: Project) -> web.Response:
    async with context.database(request).transaction() as transaction:
        talk = await conversation(request, transaction, found, wanted.merge_request_iid)
        await talk.edit(wanted.note_id, wanted.body)
        shown = await queries.show(transaction, wanted.note_id)
    return json_text(shown)


@routes.delete(NOTE, access=WRITE)
async def delete_note(request: web.Request, wanted: OneNote, found: Project) -> web.Response:
    async with context.database(request).transaction() as transaction:
        talk = await conversation(request, transaction, found, wanted.merge_request_iid)
        await talk.delete(wanted.note_id)
    return no_content()


async def shown_note(
    request: web.Request, found: Project, iid: int, note_id: int, discussion_id: str | None = None
) -> web.Response:
    """A note that the caller may read, in that thread, where one is named. Raises 404."""
    database = context.database(request)
    about = await merge_requests.find(database, found.id, iid)
    shows_internal = rules.reads_internal(found)
    if await queries.find(database, about.id, note_id, discussion_id, shows_internal=shows_internal) is None:
        raise record_not_found()
    return json_text(await queries.show(database, note_id))


def moment(
    request: web.Request, found: Project, created_at: datetime.datetime | None
) -> datetime.datetime | None:
    """When a new note was written, by who may say so; for others it is now, and the answer tells them."""
    if created_at is not None and not rules.may_date(found):
        unsupported.ignore(request, "created_at")
        return None
    return created_at
