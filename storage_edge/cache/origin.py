"""The one client session: requests to the service in whose name the edge answers."""

import ssl
from collections.abc import AsyncGenerator, Callable
from typing import Final

import aiohttp
import structlog
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from common.concurrency import ConcurrencyLimiter, TooBusy
from storage_edge.settings import TokenHeaders

log = structlog.get_logger(__name__)

VIA: Final = "1.1 forgelet-edge"
#: Idle connections are given up before common servers do so, because a request that meets a closing
#: connection is lost: the edge never sends a request twice.
IDLE_SECONDS: Final = 4.0
#: Connections that are left for asking whether the origin lives.
CHECKS: Final = 2


class OriginError(Exception):
    """The origin did not answer; `status` is what the client gets."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class OriginBusy(OriginError):
    """Too many ask the origin through this edge, or too many of this client's requests do."""

    def __init__(self) -> None:
        super().__init__(503, "Too many requests are being passed on; try again later.")


class OriginResponse:
    """A response whose body has not been read yet. It has to be read to its end or closed; `done` is called then."""

    def __init__(self, response: aiohttp.ClientResponse, done: Callable[[], None] | None = None) -> None:
        self._response = response
        self._done = done
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
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise OriginError(502, "The origin stopped before the end of its answer.") from error
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
        )
        # aiohttp repeats a request whose connection died before the answer; a cache in front of the
        # origin must not, and there is no public switch.
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
        self, method: str, target: str, *, token: str | None, headers: dict[str, str], client: str = ""
    ) -> OriginResponse:
        """One request, never repeated and no redirect followed, which takes a place of the `client` as long as its
        answer is read; raises `OriginError` when no answer comes, and `OriginBusy` when no place becomes free.
        """
        try:
            await self._places.take(client)
        except TooBusy:
            log.warning("too many requests for the origin", client=client)
            raise OriginBusy from None

        def done() -> None:
            self._places.give_back(client)

        try:
            return OriginResponse(await self._ask(method, target, token, headers), done)
        except BaseException:
            done()
            raise

    async def _ask(
        self, method: str, target: str, token: str | None, headers: dict[str, str]
    ) -> aiohttp.ClientResponse:
        if token is not None:
            headers = {**headers, self._token_headers.user: token}
        url = URL(self._base + target, encoded=True)
        try:
            return await self._session.request(method, url, headers=headers, allow_redirects=False)
        except TimeoutError as error:
            log.warning("origin did not answer in time", target=target)
            raise OriginError(504, "The origin did not answer in time.") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            log.warning("origin could not be reached", target=target, reason=type(error).__name__)
            raise OriginError(502, "The origin could not be reached.") from error

    async def check(self) -> None:
        """Raises `OriginError` unless the origin says that it is alive."""
        response = await self._ask("GET", "/-/liveness", None, {})
        response.release()
        if response.status != 200:
            raise OriginError(502, f"The origin's liveness is {response.status}.")


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
