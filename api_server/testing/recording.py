"""Writes each request into the journal, with its answer."""

import time
from collections.abc import Callable

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.typedefs import Handler

from api_server.testing.journal import JOURNAL, Entry, Heard
from api_server.testing.path_patterns import sent_path
from api_server.testing.steering import is_about_us
from api_server.web import context
from api_server.web.auth import TOKEN_OWNER, Caller
from api_server.web.request_data import HEARD
from api_server.web.routes import CALLER
from common import logs

ENTRY = web.RequestKey("entry", Entry)


@web.middleware
async def recorded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Everything but what steers or watches the server."""
    if is_about_us(request):
        return await handler(request)
    journal = request.app[JOURNAL]
    entry = _entry_of(request)
    request[ENTRY] = entry
    journal.begin(entry)
    hear: Callable[[bytes], None] = entry.body
    request[HEARD] = hear
    writer = request.writer
    writer.on_body_write = entry.response.note
    began = time.perf_counter()
    try:
        response = await handler(request)
        _note_answer(request, entry, response, writer)
        return response
    except web.HTTPException as answer:
        _note_answer(request, entry, answer, writer)
        raise
    finally:
        _note_user(request, entry)
        journal.end(entry, time.perf_counter() - began)


async def note_begun_answer(request: web.Request, response: web.StreamResponse) -> None:
    """A signal of the application: of an answer that is sent in pieces, the client may ask before its end is noted."""
    entry = request.get(ENTRY)
    if entry is not None and entry.status is None and entry.duration is None:
        _note_head(request, entry, response)


def _entry_of(request: web.Request) -> Entry:
    return Entry(
        id=logs.REQUEST_ID.get() or "",
        time=context.now(request),
        method=request.method,
        path=sent_path(request.raw_path),
        query=request.rel_url.raw_query_string,
        headers=request.headers,
        body=Heard(request.content_type),
        content_length=request.content_length,
    )


def _note_head(request: web.Request, entry: Entry, response: web.StreamResponse) -> None:
    entry.status = response.status
    entry.response.content_type = response.content_type
    _note_user(request, entry)


def _note_user(request: web.Request, entry: Entry) -> None:
    """With whose rights it was asked, where that has been looked up."""
    who = request.get(CALLER) or request.get(TOKEN_OWNER)
    entry.user = who.username if isinstance(who, Caller) else None


def _note_answer(
    request: web.Request, entry: Entry, response: web.StreamResponse, writer: AbstractStreamWriter
) -> None:
    if entry.status is not None:  # begun before
        return
    writer.on_body_write = None
    _note_head(request, entry, response)
    if isinstance(response, web.Response) and isinstance(response.body, bytes) and request.method != "HEAD":
        entry.response(response.body)
