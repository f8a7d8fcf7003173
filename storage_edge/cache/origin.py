"""The one client session: requests to the service in whose name the edge answers."""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import structlog
from yarl import URL

from common.concurrency import ConcurrencyLimiter, Rates, ShareTaken, TooBusy
from common.logs import ThrottledLog
from storage_edge.cache.origin_health import UNTRUSTED, OriginHealth
from storage_edge.cache.origin_response import NoAnswer, OriginBusy, OriginError, OriginResponse
from storage_edge.cache.origin_tls import origin_context
from storage_edge.metrics import Failure, Metrics
from storage_edge.rules import validation
from storage_edge.settings import Settings

log = structlog.get_logger(__name__)

VIA: Final = "1.1 forgelet-edge"
#: Idle connections are given up before common servers do so: a request that meets a closing one has to be sent again.
IDLE_SECONDS: Final = 4.0
#: Seconds between two lines about the same failure: outages last, and `OriginHealth` says when they begin and end.
LOG_SECONDS: Final = 60.0


class Origin:
    """Asks the service for objects, with the storage's token and the user's. `use` takes changed settings."""

    def __init__(self, settings: Settings, metrics: Metrics, name: str) -> None:
        """`name` is how requests of this process are known if they come back to it (`CDN-Loop`)."""
        self._settings = settings
        self._metrics = metrics
        self._places = ConcurrencyLimiter(1, 1)
        self._rates = Rates()
        self._log = ThrottledLog(log, LOG_SECONDS)
        self.health = OriginHealth(self, settings)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=IDLE_SECONDS
            ),  # `_places` are the limit
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=["Accept", "Accept-Encoding", "User-Agent"],
            headers={"Via": VIA, "CDN-Loop": name},
            read_bufsize=2**18,
            max_line_size=32_768,
            max_field_size=32_768,
            trace_configs=[_noting(metrics)],
        )
        # aiohttp repeats whatever request dies before its answer, on new connections too, and there is no public
        # switch. `_sent` knows better which ones the origin cannot have seen.
        self._session._retry_connection = False
        self.use(settings, origin_context(settings))

    def use(self, settings: Settings, context: ssl.SSLContext | None) -> None:
        """From now on requests go out as these settings say; `context` is `origin_context` of them."""
        self._settings = settings
        self._token_headers = settings.token_headers
        self._storage = (
            {self._token_headers.storage: str(settings.storage_token)} if settings.storage_token else {}
        )
        self._ssl: Any = True if context is None else context
        self._server_name = settings.origin_tls_name or None
        self._read_timeout = settings.origin_read_timeout or settings.origin_timeout
        self._timeout = aiohttp.ClientTimeout(
            total=None, connect=settings.origin_connect_timeout, sock_read=settings.origin_timeout
        )
        self._places.resize(
            settings.origin_connections, settings.origin_connections_per_address, settings.origin_patience
        )
        self._rates.limit(settings.client_origin_rate, settings.client_origin_burst)

    @property
    def at_work(self) -> int:
        """Requests for objects that have a place now."""
        return self._places.held

    def forget_clients(self) -> None:
        """No client has asked too often."""
        self._rates.forget()

    async def aclose(self) -> None:
        """Ends its connections."""
        await self._session.close()

    async def ask(
        self,
        method: str,
        uri: str,
        *,
        token: str | None = None,
        fields: Mapping[str, str],
        conditions: Mapping[str, str],
        client: str = "",
    ) -> OriginResponse:
        """One request, no redirect followed, which takes a place of the `client` as long as its answer is read; raises
        `OriginError` when no answer comes, or one that is none to this request, and `OriginBusy` when no place becomes
        free, or the client asks too often.
        """
        await self._admitted(client)

        def done() -> None:
            self._places.give_back(client)

        def broken(error: Exception) -> None:
            self._failed("stopped", "origin stopped early", uri, reason=type(error).__name__)

        try:
            with self._metrics.timed("head"):
                response = await self.head(
                    method, uri, token, {**fields, **conditions}, self._settings.origin_timeout
                )
        except BaseException as error:
            done()
            if isinstance(error, NoAnswer):
                self._failed(error.failure, error.event, uri, **error.details)
            raise
        self.health.saw(uri, response.status, response.headers, is_anonymous=token is None)
        if validation.answers(response.status, conditional=bool(conditions)):
            return OriginResponse(response, self._metrics, self._read_timeout, done, broken)
        response.close()
        done()
        self._failed("mismatched", "origin gave an answer to another question", uri, status=response.status)
        raise OriginError(502, "The origin's answer is none to this request.")

    async def _admitted(self, client: str) -> None:
        wait = self._rates.wait(client, time.monotonic())
        if wait:
            self._metrics.origin_failed("limited")
            self._metrics.limited("origin")
            self._log.warning("a client asks too often for what is not stored", about=client, client=client)
            raise OriginBusy(client, status=429, retry_after=str(wait))
        with self._metrics.timed("place"):
            try:
                await self._places.take(client)
            except TooBusy as error:
                self._metrics.origin_failed("busy")
                self._log.warning("too many requests for the origin", about=client, client=client)
                raise OriginBusy(client if isinstance(error, ShareTaken) else None) from None

    async def head(
        self, method: str, uri: str, token: str | None, fields: dict[str, str], seconds: float
    ) -> aiohttp.ClientResponse:
        """The head of an answer, which takes no place; raises `NoAnswer`, of which nobody is told."""
        fields |= self._storage
        if token is not None:
            fields[self._token_headers.user] = token
        try:
            async with asyncio.timeout(seconds):
                return await self._sent(method, URL(uri, encoded=True), fields)
        except TimeoutError as error:
            phase = "connect" if isinstance(error, aiohttp.ConnectionTimeoutError) else "head"
            raise NoAnswer(504, "timeout", "origin did not answer in time", phase=phase) from error
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise NoAnswer(502, "unreachable", "origin could not be reached", reason=_why(error)) from error
        except (aiohttp.ClientError, ValueError) as error:
            reason = type(error).__name__
            raise NoAnswer(502, "unreadable", "origin's answer cannot be read", reason=reason) from error

    def _failed(self, what: Failure, event: str, uri: str, **fields: Any) -> None:
        """One line a minute about one reason."""
        self._metrics.origin_failed(what)
        about = next(iter(fields.values()), None)
        self._log.warning(event, about=about, target=uri, **fields)

    async def _sent(self, method: str, url: URL, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Sends a request that may be sent twice, and again while all that it met is idle connections that the origin
        had given up (RFC 9110 section 9.2.2, RFC 9112 section 9.3.1). Raises what aiohttp raises.
        """
        while True:
            met: dict[str, Any] = {}
            try:
                return await self._session.request(
                    method,
                    url,
                    headers=headers,
                    allow_redirects=False,
                    ssl=self._ssl,
                    server_hostname=self._server_name,
                    timeout=self._timeout,
                    trace_request_ctx=met,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if "reused" not in met:
                    raise


def _why(error: Exception) -> str:
    """Why there is no connection, for operators."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        judged = error.certificate_error
        return f"{UNTRUSTED}: {getattr(judged, 'verify_message', judged)}"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"TLS failed: {error.os_error}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"nobody has the name {error.host}"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return type(error).__name__


def _noting(metrics: Metrics) -> aiohttp.TraceConfig:
    """Tells the dictionary that goes with a request whether its connection had been used before, and the metrics how
    long a new one took."""

    async def reused(_session: aiohttp.ClientSession, context: SimpleNamespace, _: Any) -> None:
        context.trace_request_ctx["reused"] = True

    async def begins(_session: aiohttp.ClientSession, context: SimpleNamespace, _: Any) -> None:
        context.trace_request_ctx["begun"] = time.perf_counter()

    async def is_made(_session: aiohttp.ClientSession, context: SimpleNamespace, _: Any) -> None:
        metrics.origin_took("connect", time.perf_counter() - context.trace_request_ctx["begun"])

    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(reused)
    config.on_connection_create_start.append(begins)
    config.on_connection_create_end.append(is_made)
    return config
