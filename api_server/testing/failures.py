"""Failures on request: which requests fail, in which way, and how often; and making them fail."""

import asyncio
import contextlib
import difflib
import itertools
import math
import re
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import attrs
import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.typedefs import Handler

from api_server.code.git_access import git_caller
from api_server.services import Key
from api_server.state.errors import Unavailable
from api_server.testing.journal import ENTRY
from api_server.testing.steering import check_pattern, fits, is_about_us, refused, sent_path
from api_server.web import auth, context
from api_server.web.auth import Actor, Anonymous
from api_server.web.errors import REASONS, ApiError, BodyRefused
from api_server.web.request_data import chunks
from common.connections import BodyTooSlow

LONGEST_DELAY = 300
MAX_TIMES = 1_000_000
MAX_CUT = 2**40
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_METHOD = re.compile(r"[A-Z]{1,20}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
#: Headers that determine the length of an answer are set by the server.
_FRAMING = {"content-length", "transfer-encoding", "connection"}


def ordered(items: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields of a failure except `id` and `left`. Raise 400."""
    for name in items:
        if name not in _FIELDS:
            matches = difflib.get_close_matches(name, _FIELDS, n=1) or [", ".join(_FIELDS)]
            raise refused(f"A failure has no {name[:50]!r}; did you mean {matches[0]}?")
    values = {name: default for name, (default, _) in _FIELDS.items()}
    for name, value in items.items():
        if value is not None:
            values[name] = _FIELDS[name][1](name, value)
    if values["path"] is None:
        raise refused("path is missing: a pattern such as /api/v4/projects/*/jobs, or ** for every path.")
    if values["cut"] is True and (values["status"] or values["headers"]):
        raise refused("cut is true: no answer is begun that could have a status or headers.")
    if values["status"] is None and values["body"] is not None:
        raise refused("body is without status: the real answer has a body of its own.")
    if values["status"] is None and not (values["headers"] or values["delay"] or values["cut"] is not False):
        raise refused("Nothing fails: name status, headers, delay or cut.")
    return values


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise refused(f"{name} has to be a text.")
    return value


def _checked_method(name: str, value: Any) -> str | None:
    method = _text(name, value).upper()
    if method == "*":
        return None
    if not _METHOD.fullmatch(method):
        raise refused(f"{name} has to be an HTTP method such as GET.")
    return method


def _checked_path(name: str, value: Any) -> str:
    return check_pattern(name, _text(name, value))


def _integer(minimum: int, maximum: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if type(value) is not int or not minimum <= value <= maximum:
            raise refused(f"{name} has to be a whole number from {minimum} to {maximum}.")
        return value

    return check


def _delay(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= LONGEST_DELAY:
        raise refused(f"{name} has to be a number of seconds from 0 to {LONGEST_DELAY}.")
    return float(value)


def _cut(name: str, value: Any) -> bool | int:
    if type(value) is bool:
        return value
    if type(value) is not int or not 0 <= value <= MAX_CUT:
        raise refused(f"{name} has to be true, or the number of bytes of the answer's body that are sent.")
    return value


def _checked_headers(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise refused(f'{name} has to be an object such as {{"Retry-After": "1"}}.')
    for field, text in value.items():
        if not _TOKEN.fullmatch(field) or field.lower() in _FRAMING:
            raise refused(f"{name} cannot hold {field[:50]!r}.")
        if type(text) not in (str, int) or not _HEADER_VALUE.fullmatch(str(text)):
            raise refused(f"{name}: {field} has to be a text of one line, or a whole number.")
    return {field: str(text) for field, text in value.items()}


def _checked_body(_name: str, value: Any) -> Any:
    return value


#: In the order in which a failure is shown: the default of each field, and its check.
_FIELDS: dict[str, tuple[Any, Callable[[str, Any], Any]]] = {
    "method": (None, _checked_method),
    "path": (None, _checked_path),
    "user": (None, _text),
    "status": (None, _integer(200, 599)),
    "headers": ({}, _checked_headers),
    "body": (None, _checked_body),
    "delay": (0.0, _delay),
    "cut": (False, _cut),
    "times": (1, _integer(1, MAX_TIMES)),
}


#: Maximum number of failures; a test needs a handful. Those that are used up are removed first.
MAX_FAILURES = 1_000


@attrs.define(kw_only=True, eq=False)
class Failure:
    """A failure of the next `times` matching requests. Without a status, the real answer is delayed, cut off
    or given further headers."""

    id: int
    #: None matches every method.
    method: str | None
    path: str
    #: The owner of the request's token; None matches every request.
    user: str | None
    status: int | None
    headers: Mapping[str, str]
    #: JSON, or a plain text.
    body: Any
    #: Seconds of real time, whatever the service's clock does.
    delay: float
    #: True resets the connection before the answer; a number cuts the answer's body after that many bytes.
    cut: bool | int
    times: int
    left: int

    def shown(self) -> dict[str, Any]:
        return attrs.asdict(self)


class Failures:
    """The requested failures, which are tried from the oldest to the newest."""

    def __init__(self) -> None:
        self._ordered: dict[int, Failure] = {}
        self._ids = itertools.count(1)

    def order(self, values: Mapping[str, Any]) -> Failure:
        """Add a failure. Raise 400 if too many are waiting for their requests."""
        if len(self._ordered) >= MAX_FAILURES:
            self._ordered = {pending.id: pending for pending in self.all() if pending.left}
        if len(self._ordered) >= MAX_FAILURES:
            raise refused(f"There are {MAX_FAILURES} failures already: delete those that no request has met.")
        failure = Failure(id=next(self._ids), left=values["times"], **values)
        self._ordered[failure.id] = failure
        return failure

    async def take(
        self, method: str, path: str, read_username: Callable[[], Awaitable[str | None]]
    ) -> Failure | None:
        """Return the first failure that matches the request and decrease its count, or return None. `read_username`
        returns the name of the user, and is called only if needed."""
        for failure in self.all():
            if not failure.left or failure.method not in (None, method) or not fits(failure.path, path):
                continue
            if failure.user is None or (failure.user == await read_username() and failure.left):
                failure.left -= 1
                return failure
        return None

    def all(self) -> list[Failure]:
        """Return all failures, the oldest first, including those that are used up."""
        return list(self._ordered.values())

    def cancel(self, failure_id: int) -> None:
        """Remove a failure. Raise 404 if it does not exist."""
        if self._ordered.pop(failure_id, None) is None:
            raise refused(f"There is no failure {failure_id}.", web.HTTPNotFound)

    def clear(self) -> None:
        self._ordered.clear()


FAILURES_TO_COME = Key[Failures]("failures_to_come")


#: `SO_LINGER`: closing resets the connection.
_RESET = struct.pack("ii", 1, 0)


def reset(request: web.Request) -> NoReturn:
    """Reset the connection before an answer."""
    if request.transport is not None:
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        request.transport.abort()
    raise ConnectionResetError


class CutWriter(AbstractStreamWriter):
    """A writer that ends the connection after a number of bytes of an answer's body; a shorter answer is
    complete."""

    def __init__(self, request: web.Request, limit: int) -> None:
        self._request = request
        self._writer = request.writer
        self._remaining = limit

    @property
    def output_size(self) -> int:  # type: ignore[override]
        """Bytes that have been written."""
        return self._writer.output_size

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        part = chunk[: self._remaining]
        self._remaining -= len(part)
        await self._writer.write(part)
        if len(part) < len(chunk):
            await self._end()

    async def write_eof(self, chunk: bytes = b"") -> None:
        if len(chunk) > self._remaining:
            await self.write(chunk)
        await self._writer.write_eof(chunk)

    async def _end(self) -> NoReturn:
        """End the connection after sending the bytes that have been written."""
        self._writer.send_headers()
        await self._writer.drain()
        if self._request.transport is not None:
            self._request.transport.close()
        raise ConnectionResetError

    async def write_headers(self, status_line: str, headers: Any) -> None:
        await self._writer.write_headers(status_line, headers)

    def send_headers(self) -> None:
        self._writer.send_headers()

    async def drain(self) -> None:
        await self._writer.drain()

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        self._writer.enable_compression(encoding, strategy)

    def enable_chunking(self) -> None:
        self._writer.enable_chunking()


_FAILURE = web.RequestKey("failure_met", Failure)


@web.middleware
async def failing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let a request meet the first failure that matches it."""
    if is_about_us(request):
        return await handler(request)

    async def whose() -> str | None:
        return await _username_of(request)

    path = sent_path(request.raw_path)
    failure = await context.services(request)[FAILURES_TO_COME].take(request.method, path, whose)
    if failure is None:
        return await handler(request)
    request[_FAILURE] = failure
    request[ENTRY].failure = failure.id
    await asyncio.sleep(failure.delay)
    if failure.cut is True:
        await _username_of(request)
        reset(request)
    if failure.cut is not False:
        request._payload_writer = CutWriter(request, failure.cut)
    if failure.status is None:
        return await handler(request)
    await _username_of(request)
    await _read_body(request)
    return _failure_answer(failure, failure.status)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers of the failure that the request has met; a signal handler of the application."""
    if (failure := request.get(_FAILURE)) is not None:
        response.headers.update(failure.headers)


def _failure_answer(failure: Failure, status: int) -> web.Response:
    body: Any = failure.body
    if body is None:
        body = {"message": f"{status} {REASONS.get(status, '')}".rstrip()}
    if isinstance(body, str):
        return web.Response(status=status, text=body)
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")


async def _read_body(request: web.Request) -> None:
    """Read the body like a handler that answers, so that the client receives the answer and the journal the
    body."""
    with contextlib.suppress(BodyRefused, BodyTooSlow):
        async for _ in chunks(request):
            pass


async def _username_of(request: web.Request) -> str | None:
    """Return the name of the user whose token the request has, in any form, or None."""
    with contextlib.suppress(ApiError, web.HTTPException, Unavailable):
        services = context.services(request)
        actor: Actor | Anonymous | None
        actor = await auth.authenticate(request, services, takes_job_token=True, reads_body=False)
        actor = actor or await git_caller(request, services)
        return actor.username if isinstance(actor, Actor) else None
    return None
