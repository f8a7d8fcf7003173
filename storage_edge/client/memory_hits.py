"""Hits from memory leave in one write: a head that was rendered once for the stored response, and its body."""

from typing import Final

from aiohttp import ClientConnectionResetError, HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter

from storage_edge.cache.answer import FromStore
from storage_edge.request_rules import EdgeRequest
from storage_edge.tiers.bodies import MemoryBody

#: Request fields that may lead to another answer than the whole body, or to more than one answer.
_SPECIAL: Final = (hdrs.RANGE, hdrs.IF_NONE_MATCH, hdrs.IF_MODIFIED_SINCE, hdrs.EXPECT, hdrs.UPGRADE)


def asks_plainly(http: web.Request, request: EdgeRequest) -> bool:
    """Whether a request is for a whole object, without a token, on a connection that stays open."""
    return (
        request.method == "GET"
        and request.token is None
        and http.version == HttpVersion11
        and http.keep_alive
        and not any(name in http.headers for name in _SPECIAL)
    )


def is_plain(answer: FromStore) -> bool:
    """Whether an answer is a whole body in memory, the same for everybody who asks plainly."""
    stored = answer.stored
    return (
        isinstance(stored.body, MemoryBody)
        and stored.status == 200
        and not answer.is_new
        and not stored.policy.hidden_fields
    )


def head(answer: FromStore, age: str, status: str) -> bytes:
    """The head of an answer that `is_plain`, up to the id of its request."""
    return b"%sAge: %b\r\nCache-Status: %b\r\nX-Request-Id: " % (
        answer.stored.head,
        age.encode(),
        status.encode(),
    )


END: Final = b"\r\n\r\n"


def body(answer: FromStore) -> MemoryBody:
    """Its body."""
    found = answer.stored.body
    assert isinstance(found, MemoryBody)  # noqa: S101 - plain answers are in memory
    return found


class MemoryHit(web.StreamResponse):
    """An answer that `is_plain` to a `request` that was asked plainly.

    aiohttp's own response builds and serializes every field anew and copies the body behind the head on
    Python < 3.12, which is a third of what a hit costs.
    """

    def __init__(self, answer: FromStore, age: str, status: str, request_id: str) -> None:
        super().__init__(headers={"Cache-Status": status})
        self._rendered = head(answer, age, status) + request_id.encode() + END
        self._content = body(answer)
        self._writer: AbstractStreamWriter | None = None

    @property
    def prepared(self) -> bool:
        """Whether it has been sent."""
        return self._writer is not None

    @property
    def keep_alive(self) -> bool:
        """The connection stays open."""
        return True

    @property
    def body_length(self) -> int:
        """Bytes of head and body, as aiohttp counts them for the access log."""
        return len(self._rendered) + self._content.length

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        """Sends all of it; raises ConnectionError when the client has gone."""
        if self._writer is None:
            if request.transport is None or request.transport.is_closing():
                raise ClientConnectionResetError
            self._writer = request.writer
            self._writer.output_size += self.body_length
            request.transport.writelines((self._rendered, self._content.data))
        return self._writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Waits until the client has taken most of it."""
        assert self._writer is not None  # noqa: S101 - prepared before
        assert not data  # noqa: S101 - the body is known from the beginning
        await self._writer.drain()
