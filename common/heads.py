"""Heads of requests that no application gets to see: which statuses they have, and who says so."""

import asyncio
import functools
import re
from typing import Final

import orjson
from aiohttp import HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import BadStatusLine, LineTooLong

#: Seconds for which a refused connection stays open, so that its client gets to read why.
REFUSED_SECONDS: Final = 1.0

_WORDS: Final = {
    400: "Bad Request",
    414: "Request-URI Too Long",
    431: "Request Header Fields Too Large",
    505: "HTTP Version Not Supported",
}
#: RFC 9110 section 7.2, RFC 3986 section 3.2.2.
_HOST = re.compile(rb"(?:\[[\w.:%~-]+\]|[\w.~!$&'()*+,;=%-]*)(?::\d*)?", re.ASCII)


@functools.lru_cache(maxsize=1024)
def is_host(value: bytes) -> bool:
    """Whether a value of `Host` is empty, or a host with or without a port; remembered: each request has one."""
    return _HOST.fullmatch(value) is not None


def head_refusal(request: web.BaseRequest) -> web.Response | None:
    """Return the answer to a head that is well-formed, but of another HTTP, or for a host that is none."""
    if request._version not in (HttpVersion11, HttpVersion10):  # `version` would be remembered
        return _Refusal(505)
    host = request.headers.get(hdrs.HOST)
    if host is not None and not is_host(host.encode(errors="surrogateescape")):
        return _Refusal(400)
    return None


class Reader(web.RequestHandler):
    """aiohttp's reader of requests, which would call all that it cannot read 400 of HTTP/1.0, and repeat it."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer in the place of one that there is not."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
        return _Refusal(_status(exc))


def _status(problem: BaseException | None) -> int:
    match problem:
        case LineTooLong(args=(bytearray(), *_)):  # of fields it has bytes
            return 414
        case LineTooLong():
            return 431
        case BadStatusLine() if "Invalid HTTP version" in str(problem):
            return 505
    return 431 if "Too many headers" in str(problem) else 400


class _Refusal(web.Response):
    """The last answer of its connection, which is closed when the client has had time to read it: closing at once would
    reset the connection where anything is unread, and the answer be lost.
    """

    def __init__(self, status: int) -> None:
        words = _WORDS[status]
        body = orjson.dumps({"message": f"{status} {words}"})
        super().__init__(status=status, reason=words, body=body, content_type="application/json")
        self.force_close()

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        request._version = HttpVersion11  # nobody speaks the client's
        self._transport = request.transport
        return await super().prepare(request)

    async def write_eof(self, data: bytes = b"") -> None:
        await super().write_eof(data)
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        await asyncio.sleep(REFUSED_SECONDS)
