"""Requests to the service in whose name the edge answers, its responses, and whether it can be asked at all."""

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import aiohttp
import structlog
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from common.concurrency import ConcurrencyLimiter, Rates, ShareTaken, TooBusy
from common.lifecycle import Degraded, Failed
from common.logs import ThrottledLog
from common.static_paths import NO_FILE
from storage_edge.metrics import Failure, Metrics
from storage_edge.rules import selection
from storage_edge.settings import Settings
from storage_edge.tls import origin_context

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
    `timeout` seconds.
    """

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        metrics: Metrics,
        timeout: float,
        done: Callable[[], None],
        broken: Callable[[Exception], None],
    ) -> None:
        self._response = response
        self._metrics = metrics
        self._timeout = timeout
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
            protocol.read_timeout = self._timeout  # until now it was the head's
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


log = structlog.get_logger(__name__)

#: Seconds that the origin may take for what a look asks: readiness waits no longer than five.
LOOK_SECONDS: Final = 4.0
#: Seconds between two looks where the settings want none: whether they still do.
UNWATCHED_SECONDS: Final = 5.0
#: Seconds between two lines about a problem that stays the same.
REMIND_SECONDS: Final = 3600.0
#: How the reasons begin that are about the origin's certificate.
UNTRUSTED: Final = "its certificate is not believed"
LIVENESS: Final = "/-/liveness"

_WHERE: Final = "Settings → Repository → External storage"
_NO_TOKEN = f"No storage token is set: set storage_token_file to a file with the token that the origin has in {_WHERE}."
_WRONG_TOKEN = f"The storage token is wrong: the origin has another one in {_WHERE}."
_ITSELF = "The origin {origin} leads back to this edge: set origin to where the service itself listens."
_SENT_BACK = (
    "The origin sends the edge to the external storage, as it does with users: it does not see the edge's storage"
    " token. Set storage_token_file, and origin_flavour to what the origin is."
)


class OriginHealth:
    """What is known of the origin. `problem` is one sentence for operators, None while nothing is known to be wrong."""

    def __init__(self, origin: "Origin", settings: Settings) -> None:
        self._origin = origin
        self._settings = settings
        self._asked_at = float("-inf")
        self._checking = asyncio.Lock()
        self._unreachable: str | None = None
        self._refused: str | None = None
        self._was_right = False
        self._reported_at = float("-inf")
        self._changed = asyncio.Event()
        self.token: Literal["right", "wrong", "unknown"] = "unknown"

    @property
    def reachable(self) -> bool:
        """Whether it answered when it was asked last."""
        return self._unreachable is None

    @property
    def problem(self) -> str | None:
        """What is wrong, and what to do about it."""
        if self._unreachable or self._refused:
            return self._unreachable or self._refused
        return None if self._settings.storage_token else _NO_TOKEN

    async def check(self) -> None:
        """Readiness: asks, and raises `Failed` or `Degraded` where something is wrong. A wrong token is the latter once
        it was right: who changes it in the service does so for all edges, and what they have can still be served."""
        await self.look()
        if self.problem is not None:
            can_serve = self.reachable and (self.token != "wrong" or self._was_right)
            raise (Degraded if can_serve else Failed)(self.problem)

    async def look(self) -> None:
        """Asks the origin, once for all who want to know meanwhile."""
        wanted_at = time.monotonic()
        async with self._checking:
            if self._asked_at < wanted_at:
                self._asked_at, before = time.monotonic(), self.problem
                await self._look()
                self._tell(before)

    def forget(self) -> None:
        """The settings have changed: nothing is known any more, and `watch` looks again."""
        self._unreachable, self._refused, self.token = None, None, "unknown"
        self._changed.set()

    async def watch(self) -> None:
        """Asks every now and then, for those who only look at logs and metrics. Never returns."""
        while True:
            if self._settings.origin_check_interval:
                await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.origin_check_interval or UNWATCHED_SECONDS):
                    await self._changed.wait()
            self._changed.clear()

    def saw(self, uri: str, status: int, headers: Mapping[str, str], *, is_anonymous: bool) -> None:
        """What the origin has answered to the request for an object, where that tells of the token."""
        if status in (200, 304) and self._settings.storage_token:
            self.token, self._refused = "right", None
        elif 300 <= status < 400 and _is_back(uri, headers.get("Location", "")):
            self._is_refused(_SENT_BACK)
        elif status == 403 and is_anonymous and self._settings.storage_token:
            self._is_refused(_WRONG_TOKEN)

    def _is_refused(self, why: str) -> None:
        before = self.problem
        self.token, self._refused = "wrong", why
        self._tell(before)

    def _tell(self, before: str | None) -> None:
        now = time.monotonic()
        self._was_right |= self.token == "right"
        if self.problem == before and (before is None or now - self._reported_at < REMIND_SECONDS):
            return
        self._reported_at = now
        if self.problem is None:
            log.info("the origin can be used again")
        else:
            log.warning("the origin cannot be used as it should", problem=self.problem)

    async def _look(self) -> None:
        settings = self._settings
        origin = str(settings.origin_url).rstrip("/")
        until = time.monotonic() + min(settings.origin_timeout, LOOK_SECONDS)
        try:
            status, _ = await self._answer("GET", origin + LIVENESS, until)
            # A GitLab tells only those of its health whom it has been told of, and others 404.
            if status != 200 and not (settings.origin_flavour == "gitlab" and status < 500):
                self._unreachable = (
                    f"The origin answers {LIVENESS} with {status}: is that the service at {origin}?"
                )
                return
            self._unreachable = None
            path = settings.origin_check_path or (NO_FILE if settings.origin_flavour == "service" else "")
            if path and settings.storage_token:
                self._judge(path, *await self._answer("HEAD", origin + path, until))
        except OriginError as error:
            self._unreachable = _no_answer(origin, error)

    def _judge(self, path: str, status: int, headers: Mapping[str, str]) -> None:
        """A path that is there for everybody says more than one that is not; a redirect to sign in says nothing."""
        if status == 404 and path == NO_FILE:
            self.token, self._refused = "right", None
        else:
            self.saw(str(self._settings.origin_url).rstrip("/") + path, status, headers, is_anonymous=True)

    async def _answer(self, method: str, uri: str, until: float) -> tuple[int, Mapping[str, str]]:
        response = await self._origin.head(method, uri, None, {}, until - time.monotonic())
        response.release()
        if response.status == HTTPStatus.LOOP_DETECTED:
            raise OriginError(response.status, "It is this edge that answers.")
        return response.status, response.headers


def _no_answer(origin: str, error: OriginError) -> str:
    if not isinstance(error, NoAnswer):
        return _ITSELF.format(origin=origin)
    reason = error.details.get("reason", "")
    what = f"{str(error).removesuffix('.')}: {reason.rstrip('.')}." if reason else str(error)
    if reason.startswith(UNTRUSTED):
        return f"{what} Set origin_ca to whoever signs it, and origin_tls_name to a name that it bears."
    return f"{what} Does it run, and is {origin} where it is?"


def _is_back(uri: str, location: str) -> bool:
    """Whether a redirect goes to the same path at another host, where the origin thinks that the storage is."""
    try:
        asked, target = urlsplit(uri), urlsplit(location)
    except ValueError:
        return False
    return bool(target.netloc) and target.netloc != asked.netloc and target.path == asked.path


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
        if selection.can_answer(response.status, conditional=bool(conditions)):
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
