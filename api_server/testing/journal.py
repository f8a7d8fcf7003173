"""What has been asked and answered, newest last, without the credentials in it: so much of it as has room."""

import contextlib
import datetime
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.typedefs import Handler
from multidict import CIMultiDictProxy

from api_server.services import Key
from api_server.testing.clock import written
from api_server.testing.steering import fits, is_about_us, sent_path
from api_server.web import context, request_data
from api_server.web.auth import TOKEN_OWNER, Actor
from api_server.web.errors import ApiError
from api_server.web.request_data import HEARD, fields_of
from api_server.web.routes import CALLER
from common import logs
from common.logs import REDACTED, SECRET_NAME, redact

#: Content types whose bytes are text, beside `text/...`.
_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
#: What a request means by it that a variable is not masked; everything else may mean that it is.
_NO = (None, False, 0, "", "false", "0", "no", "off", "f", "n")
#: Who changes a variable names it in the path, and need not say that it is masked.
_OF_A_VARIABLE = re.compile(r"/variables/[^/]+$")


def masked_headers(all_: CIMultiDictProxy[str]) -> dict[str, str]:
    """By their names in lower case; several of one name are joined by commas."""
    named: dict[str, str] = {}
    for name, value in all_.items():
        key, masked_value = name.lower(), REDACTED if SECRET_NAME.search(name) else redact(value)
        named[key] = f"{named[key]}, {masked_value}" if key in named else masked_value
    return named


def masked_query(encoded: str) -> Any:
    """As the service reads it: `page=2&scope[]=failed` is `{"page": "2", "scope": ["failed"]}`. As it was sent where
    it cannot be read."""
    try:
        return masked(fields_of(encoded))
    except ApiError:
        return redact(f"?{encoded}")[1:]


def masked_content(content_type: str, data: bytes | None) -> Any:
    """JSON as JSON, whatever it is called; forms as a query, text as text; None for everything else."""
    try:
        if not data:
            return None
        if content_type == _JSON or content_type.endswith("+json"):
            return masked(orjson.loads(data))
        if content_type != _FORM and not content_type.startswith("text/"):
            return None
        if data.lstrip()[:1] in (b"{", b"["):
            with contextlib.suppress(orjson.JSONDecodeError):
                return masked(orjson.loads(data))
        return masked_query(data.decode()) if content_type == _FORM else redact(data.decode())
    except ValueError:  # not what it is said to be
        return None


def sent(path: str, body: Any) -> Any:
    """What a request to `path` has sent, masked already: without the value of a variable that it changes."""
    if isinstance(body, dict) and "value" in body and _OF_A_VARIABLE.search(path):
        return body | {"value": REDACTED}
    return body


def masked(value: Any) -> Any:
    """Texts under names of secrets are hidden, in whatever depth, and tokens wherever they stand."""
    match value:
        case str():
            return redact(value)
        case list():
            return [masked(item) for item in value]
        case dict():
            hidden = _secret_names(value)
            return {name: _hidden(item) if name in hidden else masked(item) for name, item in value.items()}
    return value


def _secret_names(named: Mapping[str, Any]) -> set[str]:
    """Of a CI/CD variable the value is a secret, where its key is called like one or it is masked in logs."""
    names = {name for name in named if SECRET_NAME.search(name) and not name.endswith(("_at", "_components"))}
    is_masked = any(named.get(name) not in _NO for name in ("masked", "masked_and_hidden", "hidden"))
    if "value" in named and (is_masked or SECRET_NAME.search(str(named.get("key", "")))):
        names.add("value")
    return names


def _hidden(value: Any) -> Any:
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    return REDACTED if isinstance(value, str) and value else masked(value)


#: A test asks a few dozen times; a whole suite that never clears the journal finds what its last tests did.
MOST_REQUESTS = 5_000
#: Bytes of one body that are kept; of longer ones the size is.
MOST_OF_BODY = 64 * 1024
#: Bytes of everything that is kept, since the server shares a laptop's memory with those who test.
MOST_BYTES = 16 * 2**20
#: Bytes that an entry takes beside its texts.
_ENTRY = 1_000


@attrs.define
class Heard:
    """A body that passes by: its beginning, and how long it has been."""

    content_type: str
    size: int = 0
    _kept: bytearray = attrs.field(factory=bytearray)

    def __call__(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size <= MOST_OF_BODY:
            self._kept += piece
        else:
            self._kept.clear()

    def note(self, size: int, _sent: int) -> None:
        """So many bytes more, which are not kept."""
        self.size += size

    @property
    def kept(self) -> bytes | None:
        """All of it, or nothing."""
        return bytes(self._kept) if self.size <= MOST_OF_BODY else None


@attrs.define(kw_only=True, eq=False)
class Entry:
    """One request. `status` is null until there is an answer, `duration` (seconds) until all of it has been given."""

    id: str
    time: datetime.datetime
    method: str
    path: str
    query: str
    headers: Any
    body: Heard
    #: Of the request, where nobody has read it.
    content_length: int | None
    user: str | None = None
    failure: int | None = None
    status: int | None = None
    response: Heard = attrs.field(factory=lambda: Heard(""))
    duration: float | None = None
    #: Bytes, as soon as the answer has been given.
    weight: int = 0
    #: False when it has been dropped.
    listed: bool = True

    def bytes(self) -> int:
        """How many are kept of it now."""
        texts = sum(len(name) + len(text) for name, text in self.headers.items())
        bodies = len(self.body.kept or b"") + len(self.response.kept or b"")
        return _ENTRY + len(self.path) + len(self.query) + texts + bodies

    def shown(self) -> dict[str, Any]:
        """What the API says of it, without credentials."""
        return {
            "id": self.id,
            "time": written(self.time),
            "method": self.method,
            "path": masked(self.path),
            "query": sent(self.path, masked_query(self.query)),
            "headers": masked_headers(self.headers),
            "user": self.user,
            "body": sent(self.path, masked_content(self.body.content_type, self.body.kept)),
            "body_size": self.body.size or self.content_length or 0,
            "status": self.status,
            "response": masked_content(self.response.content_type, self.response.kept),
            "response_size": self.response.size,
            "duration": self.duration,
            "failure": self.failure,
        }


@attrs.frozen(kw_only=True)
class Filter:
    """Which entries are meant: those that everything says which is not None."""

    method: str | None = None
    path: str | None = None
    status: int | None = None
    user: str | None = None

    def __call__(self, entry: Entry) -> bool:
        return (
            self.method in (None, entry.method)
            and (self.path is None or fits(self.path, entry.path))
            and self.status in (None, entry.status)
            and self.user in (None, entry.user)
        )


class Journal:
    """Entries in the order in which their requests came; the oldest make room for the newest."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        #: How many have had to go since it was last empty.
        self.dropped = 0

    def begin(self, entry: Entry) -> None:
        """Adds it, to be filled in as the request is answered."""
        self._entries.append(entry)
        self._make_room()

    def end(self, entry: Entry, duration: float) -> None:
        """All of the answer has been given."""
        entry.duration = duration
        entry.weight = entry.bytes()
        if entry.listed:
            self._bytes += entry.weight
            self._make_room()

    def matching(self, entry_filter: Filter) -> list[Entry]:
        return [entry for entry in self._entries if entry_filter(entry)]

    def forget(self, entry_filter: Filter) -> None:
        """Drops those that are meant."""
        for entry in self.matching(entry_filter):
            self._drop(entry)
        self._entries = deque(entry for entry in self._entries if entry.listed)
        if not self._entries:
            self.dropped = 0

    def _make_room(self) -> None:
        while len(self._entries) > MOST_REQUESTS or self._bytes > MOST_BYTES:
            self._drop(self._entries.popleft())
            self.dropped += 1

    def _drop(self, entry: Entry) -> None:
        entry.listed = False
        self._bytes -= entry.weight


JOURNAL = Key[Journal]("journal")


ENTRY = web.RequestKey("entry", Entry)


@web.middleware
async def recorded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Everything but what steers or watches the server."""
    if is_about_us(request):
        return await handler(request)
    journal = context.services(request)[JOURNAL]
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
        time=context.services(request).now,
        method=request.method,
        path=sent_path(request.raw_path),
        query=request.rel_url.raw_query_string,
        headers=request.headers,
        body=Heard(request_data.media_type(request)),
        content_length=request.content_length,
    )


def _note_head(request: web.Request, entry: Entry, response: web.StreamResponse) -> None:
    entry.status = response.status
    entry.response.content_type = response.content_type
    _note_user(request, entry)


def _note_user(request: web.Request, entry: Entry) -> None:
    """With whose rights it was asked, where that has been looked up."""
    actor = request.get(CALLER) or request.get(TOKEN_OWNER)
    entry.user = actor.username if isinstance(actor, Actor) else None


def _note_answer(
    request: web.Request, entry: Entry, response: web.StreamResponse, writer: AbstractStreamWriter
) -> None:
    if entry.status is not None:  # begun before
        return
    writer.on_body_write = None
    _note_head(request, entry, response)
    if isinstance(response, web.Response) and isinstance(response.body, bytes) and request.method != "HEAD":
        entry.response(response.body)
