"""A response of the origin whose body has not been read yet, and what there is instead of one."""

import time
from collections.abc import AsyncGenerator, Callable
from typing import Final

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy

from storage_edge.metrics import Failure, Metrics

#: Seconds after which a request that found no place is worth another try.
RETRY_AFTER: Final = "5"
STOPPED: Final = "The origin stopped before the end of its answer."


class OriginError(Exception):
    """The origin gave no answer that can be passed on; `status` is what the client gets, with `retry_after` as its
    Retry-After.
    """

    def __init__(self, status: int, sentence: str, retry_after: str | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_after = retry_after


class NoAnswer(OriginError):
    """It gave none at all. `event` says so, for the log; `details` say more."""

    def __init__(self, status: int, failure: Failure, event: str, **details: str) -> None:
        super().__init__(status, f"The {event}.")
        self.failure = failure
        self.event = event
        self.details = details


class OriginBusy(OriginError):
    """Too many ask the origin through this edge, or, where it is named, too many requests of one `client` do."""

    def __init__(
        self, client: str | None = None, *, status: int = 503, retry_after: str = RETRY_AFTER
    ) -> None:
        super().__init__(status, "Too many requests are being passed on; try again later.", retry_after)
        self.client = client


class OriginResponse:
    """A response whose body has not been read yet. It has to be read to its end or closed; `done` is called then, and
    before that `broken` with an error that ends the body too early. Between two pieces of the body it may take
    `patience` seconds.
    """

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        metrics: Metrics,
        patience: float,
        done: Callable[[], None],
        broken: Callable[[Exception], None],
    ) -> None:
        self._response = response
        self._metrics = metrics
        self._patience = patience
        self._done: Callable[[], None] | None = done
        self._broken = broken
        self._begun = time.perf_counter()
        self.status = response.status
        self.reason = response.reason or ""
        self.headers = _readable(response.headers)

    @property
    def length(self) -> int | None:
        """The Content-Length, where there is one."""
        return self._response.content_length

    @property
    def has_known_end(self) -> bool:
        """Whether a body that stops too early can be told from a whole one (RFC 9112 section 8)."""
        chunked = "chunked" in self._response.headers.get("Transfer-Encoding", "").lower()
        return chunked or self.length is not None or self.status == 204

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives; raises `OriginError` when it ends too early."""
        connection = self._response.connection
        protocol = None if connection is None else connection.protocol
        if protocol is not None:
            protocol.read_timeout = self._patience  # until now it was the head's
            if not protocol._reading_paused:
                protocol.start_timeout()
        try:
            async for chunk in self._response.content.iter_any():
                self._metrics.bytes_from_origin += len(chunk)
                yield chunk
            # A body that ends with its connection is whole unless that broke (RFC 9112 section 8).
            if not self.has_known_end and protocol is not None:
                broken = protocol.exception()
                if isinstance(broken, aiohttp.ClientOSError):
                    raise broken
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._broken(error)
            raise OriginError(502, STOPPED) from error
        finally:
            self.close()

    def close(self) -> None:
        """Gives up the rest of the body, and the connection with it if there is a rest."""
        self._response.release()
        done, self._done = self._done, None
        if done is not None:
            self._metrics.origin_took("body", time.perf_counter() - self._begun)
            done()


def _readable(headers: CIMultiDictProxy[str]) -> CIMultiDictProxy[str]:
    """Field values that can be sent on: what is not UTF-8 is read as ISO 8859-1 (RFC 9110 section 5.5)."""
    if all(value.isascii() for value in headers.values()):
        return headers
    return CIMultiDictProxy(CIMultiDict((name, _latin(value)) for name, value in headers.items()))


def _latin(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape").decode("latin-1")
    return value
