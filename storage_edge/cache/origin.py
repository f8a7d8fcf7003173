"""The one client session: requests to the service in whose name the edge answers."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import structlog
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from common.concurrency import ConcurrencyLimiter, ShareTaken, TooBusy
from common.throttled_log import ThrottledLog
from storage_edge.rules import validation
from storage_edge.settings import TokenHeaders

log = structlog.get_logger(__name__)

VIA: Final = "1.1 forgelet-edge"
#: Idle connections are given up before common servers do so: a request that meets a closing one has to be sent again.
IDLE_SECONDS: Final = 4.0
#: Connections that are left for asking whether the origin lives, and seconds that it may take to say so.
CHECKS: Final = 2
CHECK_SECONDS: Final = 5.0


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


class OriginBusy(OriginError):
    """Too many ask the origin through this edge, or, where it is named, too many requests of one `client` do."""

    def __init__(self, client: str | None = None) -> None:
        super().__init__(503, "Too many requests are being passed on; try again later.", RETRY_AFTER)
        self.client = client


class OriginResponse:
    """A response whose body has not been read yet. It has to be read to its end or closed; `done` is called then, and
    before that `broken` with an error that ends the body too early.
    """

    def __init__(
        self, response: aiohttp.ClientResponse, done: Callable[[], None], broken: Callable[[Exception], None]
    ) -> None:
        self._response = response
        self._done: Callable[[], None] | None = done
        self._broken = broken
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
        try:
            async for chunk in self._response.content.iter_any():
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
            done()


class Origin:
    """Asks the service for objects, with the storage's token and the user's."""

    def __init__(
        self,
        url: URL,
        *,
        storage_token: str,
        token_headers: TokenHeaders,
        connections: int,
        connections_of_one: int,
        patience: float,
        timeout: float,
    ) -> None:
        self._places = ConcurrencyLimiter(connections, connections_of_one, patience=patience)
        self._base = str(url).rstrip("/")
        self._token_headers = token_headers
        self._timeout = timeout
        self._log = ThrottledLog(log)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections + CHECKS,
                keepalive_timeout=IDLE_SECONDS,
                ssl=ssl.create_default_context() if url.scheme == "https" else True,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None, connect=timeout, sock_connect=timeout, sock_read=timeout
            ),
            auto_decompress=False,
            skip_auto_headers=["Accept", "Accept-Encoding", "User-Agent"],
            headers={"Via": VIA},
            read_bufsize=2**18,
            max_line_size=32_768,
            max_field_size=32_768,
            trace_configs=[_noting_reuse()],
        )
        # aiohttp repeats whatever request dies before its answer, on new connections too, and there is no public
        # switch. `_sent` knows better which ones the origin cannot have seen.
        self._session._retry_connection = False
        self.use_token(storage_token)

    def use_token(self, storage_token: str) -> None:
        """From now on requests carry this token of the storage; none where it is empty."""
        self._session.headers.popall(self._token_headers.storage, None)
        if storage_token:
            self._session.headers[self._token_headers.storage] = storage_token

    async def aclose(self) -> None:
        """Ends its connections."""
        await self._session.close()

    async def ask(
        self,
        method: str,
        target: str,
        *,
        token: str | None,
        forwarded: Mapping[str, str],
        conditions: Mapping[str, str],
        client: str = "",
    ) -> OriginResponse:
        """One request, no redirect followed, which takes a place of the `client` as long as its answer is read; raises
        `OriginError` when no answer comes, or one that is none to this request, and `OriginBusy` when no place becomes
        free.
        """
        try:
            await self._places.take(client)
        except TooBusy as error:
            self._log.warning("too many requests for the origin", about=client, client=client)
            raise OriginBusy(client if isinstance(error, ShareTaken) else None) from None

        def done() -> None:
            self._places.give_back(client)

        def broken(error: Exception) -> None:
            reason = type(error).__name__
            self._log.warning("origin stopped early", about=reason, target=target, reason=reason)

        try:
            headers = {**forwarded, **conditions}
            response = await self._ask(method, target, token, headers, self._timeout)
        except BaseException:
            done()
            raise
        if validation.answers(response.status, conditional=bool(conditions)):
            return OriginResponse(response, done, broken)
        response.close()
        done()
        status = response.status
        self._log.warning(
            "origin gave an answer to another question", about=status, target=target, status=status
        )
        raise OriginError(502, "The origin's answer is none to this request.")

    async def _ask(
        self, method: str, target: str, token: str | None, headers: dict[str, str], seconds: float
    ) -> aiohttp.ClientResponse:
        if token is not None:
            headers = {**headers, self._token_headers.user: token}
        try:
            async with asyncio.timeout(seconds):
                return await self._sent(method, URL(self._base + target, encoded=True), headers)
        except TimeoutError as error:
            self._log.warning("origin did not answer in time", target=target)
            raise OriginError(504, "The origin did not answer in time.") from error
        except (aiohttp.ClientConnectionError, OSError) as error:
            reason = type(error).__name__
            self._log.warning("origin could not be reached", about=reason, target=target, reason=reason)
            raise OriginError(502, "The origin could not be reached.") from error
        except (aiohttp.ClientError, ValueError) as error:
            self._log.warning("origin's answer cannot be read", target=target, reason=type(error).__name__)
            raise OriginError(502, "The origin's answer cannot be read.") from error

    async def _sent(self, method: str, url: URL, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Sends a request that may be sent twice, and again while all that it met is idle connections that the origin
        had given up (RFC 9110 section 9.2.2, RFC 9112 section 9.3.1). Raises what aiohttp raises.
        """
        while True:
            met: dict[str, bool] = {}
            try:
                return await self._session.request(
                    method, url, headers=headers, allow_redirects=False, trace_request_ctx=met
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if "reused" not in met:
                    raise

    async def check(self) -> None:
        """Raises `OriginError` unless the origin says that it is alive."""
        response = await self._ask("GET", "/-/liveness", None, {}, min(self._timeout, CHECK_SECONDS))
        response.release()
        if response.status != 200:
            raise OriginError(502, f"The origin's liveness is {response.status}.")


def _noting_reuse() -> aiohttp.TraceConfig:
    """Tells the dictionary that goes with a request whether its connection had been used before."""

    async def reused(_session: aiohttp.ClientSession, context: SimpleNamespace, _: Any) -> None:
        context.trace_request_ctx["reused"] = True

    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(reused)
    return config


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
