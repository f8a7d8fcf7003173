"""A journal of requests and answers, newest last, without credentials and of limited size."""

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
from api_server.testing.clock import formatted
from api_server.testing.steering import fits, is_about_us, sent_path
from api_server.web import context, request_data
from api_server.web.auth import TOKEN_OWNER, Actor
from api_server.web.errors import ApiError
from api_server.web.request_data import BODY_LISTENER, fields_of
from api_server.web.routes import CALLER
from common import logs
from common.logs import REDACTED, SECRET_NAME, redact

#: Content types, in addition to `text/...`, whose bytes are text.
_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
#: Values of a request that say that a variable is not masked; any other value may mean that it is.
_NO = (None, False, 0, "", "false", "0", "no", "off", "f", "n")
#: A request that changes a variable names it in the path and may leave out whether it is masked.
_OF_A_VARIABLE = re.compile(r"/variables/[^/]+$")


def masked_headers(all_: CIMultiDictProxy[str]) -> dict[str, str]:
    """Return the headers by their names in lower case, with secrets masked; repeated headers are joined by
    commas."""
    result: dict[str, str] = {}
    for name, value in all_.items():
        key, masked_value = name.lower(), REDACTED if SECRET_NAME.search(name) else redact(value)
        result[key] = f"{result[key]}, {masked_value}" if key in result else masked_value
    return result


def masked_query(encoded: str) -> Any:
    """Return the query as the service reads it: `page=2&scope[]=failed` becomes `{"page": "2", "scope":
    ["failed"]}`. Return a query that cannot be read as it was sent."""
    try:
        return masked(fields_of(encoded))
    except ApiError:
        return redact(f"?{encoded}")[1:]


def masked_content(content_type: str, data: bytes | None) -> Any:
    """Return JSON parsed, whatever its content type; forms like a query, text as text; None for everything
    else."""
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
    except ValueError:  # not of the type that it claims
        return None


def sent(path: str, body: Any) -> Any:
    """Return the masked contents of a request to `path`, without the value of a variable that it changes."""
    if isinstance(body, dict) and "value" in body and _OF_A_VARIABLE.search(path):
        return body | {"value": REDACTED}
    return body


def masked(value: Any) -> Any:
    """Hide texts under names of secrets at every depth, and tokens everywhere."""
    match value:
        case str():
            return redact(value)
        case list():
            return [masked(item) for item in value]
        case dict():
            secret = _secret_names(value)
            return {name: _hidden(item) if name in secret else masked(item) for name, item in value.items()}
    return value


def _secret_names(data: Mapping[str, Any]) -> set[str]:
    """Return the names whose values are secret; the value of a CI/CD variable is if its key looks like that
    of a secret or it is masked in logs."""
    names = {name for name in data if SECRET_NAME.search(name) and not name.endswith(("_at", "_components"))}
    is_masked = any(data.get(name) not in _NO for name in ("masked", "masked_and_hidden", "hidden"))
    if "value" in data and (is_masked or SECRET_NAME.search(str(data.get("key", "")))):
        names.add("value")
    return names


def _hidden(value: Any) -> Any:
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    return REDACTED if isinstance(value, str) and value else masked(value)


#: Maximum number of entries. A test makes a few dozen requests; after a whole suite that never clears the
#: journal, those of its last tests are left.
MAX_REQUESTS = 5_000
#: Maximum bytes stored of one body; of longer ones only the size is stored.
MAX_BODY_BYTES = 64 * 1024
#: Maximum bytes of the journal, since the server shares a laptop's memory with the tests.
MAX_BYTES = 16 * 2**20
#: Bytes of an entry in addition to its texts.
_ENTRY = 1_000


@attrs.define
class RecordedBody:
    """A recorded body: its beginning and its size."""

    content_type: str
    size: int = 0
    _content: bytearray = attrs.field(factory=bytearray)

    def __call__(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size <= MAX_BODY_BYTES:
            self._content += chunk
        else:
            self._content.clear()

    def note(self, size: int, _sent: int) -> None:
        """Count more bytes without storing them."""
        self.size += size

    @property
    def content(self) -> bytes | None:
        """The whole body, or None if it is too long."""
        return bytes(self._content) if self.size <= MAX_BODY_BYTES else None


@attrs.define(kw_only=True, eq=False)
class Entry:
    """One request. `status` is null until the answer begins, `duration` (seconds) until it has been sent
    completely."""

    id: str
    time: datetime.datetime
    method: str
    path: str
    query: str
    headers: Any
    body: RecordedBody
    #: The length announced by the request, if nobody has read the body.
    content_length: int | None
    user: str | None = None
    failure: int | None = None
    status: int | None = None
    response: RecordedBody = attrs.field(factory=lambda: RecordedBody(""))
    duration: float | None = None
    #: Bytes, known after the answer has been sent.
    stored_bytes: int = 0
    #: False when it has been dropped.
    is_listed: bool = True

    def bytes(self) -> int:
        """Return the number of bytes that are stored for it now."""
        texts = sum(len(name) + len(text) for name, text in self.headers.items())
        bodies = len(self.body.content or b"") + len(self.response.content or b"")
        return _ENTRY + len(self.path) + len(self.query) + texts + bodies

    def shown(self) -> dict[str, Any]:
        """Return the entry as the API shows it, without credentials."""
        return {
            "id": self.id,
            "time": formatted(self.time),
            "method": self.method,
            "path": masked(self.path),
            "query": sent(self.path, masked_query(self.query)),
            "headers": masked_headers(self.headers),
            "user": self.user,
            "body": sent(self.path, masked_content(self.body.content_type, self.body.content)),
            "body_size": self.body.size or self.content_length or 0,
            "status": self.status,
            "response": masked_content(self.response.content_type, self.response.content),
            "response_size": self.response.size,
            "duration": self.duration,
            "failure": self.failure,
        }


@attrs.frozen(kw_only=True)
class Filter:
    """A filter of entries: those that match every attribute that is not None."""

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
    """The entries in the order of their requests; the oldest are dropped to make room for the newest."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        #: The number of entries dropped since the journal was last empty.
        self.dropped = 0

    def begin(self, entry: Entry) -> None:
        """Add an entry, which is completed as the request is answered."""
        self._entries.append(entry)
        self._make_room()

    def end(self, entry: Entry, duration: float) -> None:
        """Record that the whole answer has been sent."""
        entry.duration = duration
        entry.stored_bytes = entry.bytes()
        if entry.is_listed:
            self._bytes += entry.stored_bytes
            self._make_room()

    def matching(self, entry_filter: Filter) -> list[Entry]:
        return [entry for entry in self._entries if entry_filter(entry)]

    def forget(self, entry_filter: Filter) -> None:
        """Drop the entries that match."""
        for entry in self.matching(entry_filter):
            self._drop(entry)
        self._entries = deque(entry for entry in self._entries if entry.is_listed)
        if not self._entries:
            self.dropped = 0

    def _make_room(self) -> None:
        while len(self._entries) > MAX_REQUESTS or self._bytes > MAX_BYTES:
            self._drop(self._entries.popleft())
            self.dropped += 1

    def _drop(self, entry: Entry) -> None:
        entry.is_listed = False
        self._bytes -= entry.stored_bytes


JOURNAL = Key[Journal]("journal")


ENTRY = web.RequestKey("entry", Entry)


@web.middleware
async def recorded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Record every request except those that steer or watch the server."""
    if is_about_us(request):
        return await handler(request)
    journal = context.services(request)[JOURNAL]
    entry = _entry_of(request)
    request[ENTRY] = entry
    journal.begin(entry)
    hear: Callable[[bytes], None] = entry.body
    request[BODY_LISTENER] = hear
    writer = request.writer
    writer.on_body_write = entry.response.note
    start = time.perf_counter()
    try:
        response = await handler(request)
        _note_answer(request, entry, response, writer)
        return response
    except web.HTTPException as answer:
        _note_answer(request, entry, answer, writer)
        raise
    finally:
        _note_user(request, entry)
        journal.end(entry, time.perf_counter() - start)


async def note_begun_answer(request: web.Request, response: web.StreamResponse) -> None:
    """Record the beginning of an answer; a signal handler of the application. A client that receives an
    answer in pieces may ask for the entry before the answer ends."""
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
        body=RecordedBody(request_data.media_type(request)),
        content_length=request.content_length,
    )


def _note_head(request: web.Request, entry: Entry, response: web.StreamResponse) -> None:
    entry.status = response.status
    entry.response.content_type = response.content_type
    _note_user(request, entry)


def _note_user(request: web.Request, entry: Entry) -> None:
    """Record the user with whose rights the request was made, if that has been determined."""
    actor = request.get(CALLER) or request.get(TOKEN_OWNER)
    entry.user = actor.username if isinstance(actor, Actor) else None


def _note_answer(
    request: web.Request, entry: Entry, response: web.StreamResponse, writer: AbstractStreamWriter
) -> None:
    if entry.status is not None:  # recorded when it began
        return
    writer.on_body_write = None
    _note_head(request, entry, response)
    if isinstance(response, web.Response) and isinstance(response.body, bytes) and request.method != "HEAD":
        entry.response(response.body)
