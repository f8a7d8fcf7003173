"""Requests to the origin (the service), its responses, and whether it can be reached at all."""

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import aiohttp
import attrs
import structlog
from aiohttp import hdrs
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
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

#: Seconds after which a client may repeat a request that found no place.
RETRY_AFTER: Final = "5"
STOPPED: Final = "The origin stopped before the end of its answer."


class OriginError(Exception):
    """The origin gave no answer that can be passed on. `status` is the client's status, and `retry_after` is for
    Retry-After."""

    def __init__(self, status: int, sentence: str, retry_after: str | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_after = retry_after


class NoAnswer(OriginError):
    """The origin gave no answer at all. `event` and `details` are for the log."""

    def __init__(self, status: int, failure: Failure, event: str, **details: str) -> None:
        super().__init__(status, f"The {event}.")
        self.failure = failure
        self.event = event
        self.details = details


class OriginBusy(OriginError):
    """Too many requests wait for the origin or, if `client` is named, too many of that client."""

    def __init__(
        self, client: str | None = None, *, status: int = 503, retry_after: str = RETRY_AFTER
    ) -> None:
        super().__init__(status, "Too many requests are being passed on; try again later.", retry_after)
        self.client = client


@attrs.frozen
class Received:
    """A response whose head has arrived. Its connection is reused once it is released, if the body has arrived, too."""

    message: RawResponseMessage
    content: aiohttp.StreamReader
    connection: Connection


class OriginResponse:
    """A response whose body has not been read yet. It must be read to its end or closed; then `done` is called. A call
    of `broken` with an error ends the body early."""

    def __init__(
        self,
        received: Received,
        metrics: Metrics,
        on_done: Callable[[], None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        self._content = received.content
        self._connection = received.connection
        self._metrics = metrics
        self._on_done: Callable[[], None] | None = on_done
        self._on_broken = on_broken
        self._started_at = time.perf_counter()
        self.status = received.message.code
        self.reason = received.message.reason or ""
        self.headers = _readable(received.message.headers)

    @property
    def length(self) -> int | None:
        """The Content-Length, or None without one."""
        length = self.headers.get(hdrs.CONTENT_LENGTH)
        return None if length is None else int(length)

    @property
    def has_known_end(self) -> bool:
        """Whether an incomplete body can be distinguished from a complete one (RFC 9112 section 8)."""
        chunked = "chunked" in self.headers.get("Transfer-Encoding", "").lower()
        return chunked or self.length is not None or self.status == 204

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives. Raise `OriginError` if it ends too early."""
        protocol = self._connection.protocol
        try:
            async for chunk in self._content.iter_any():
                self._metrics.bytes_from_origin += len(chunk)
                yield chunk
            # A body that ends with its connection is complete unless the connection broke (RFC 9112 section 8).
            if not self.has_known_end and protocol is not None:
                broken = protocol.exception()
                if isinstance(broken, aiohttp.ClientOSError):
                    raise broken
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._on_broken(error)
            raise OriginError(502, STOPPED) from error
        finally:
            self.close()

    def close(self) -> None:
        """Give up the rest of the body, and with it the connection if there is a rest."""
        self._connection.release()
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            self._metrics.origin_took("body", time.perf_counter() - self._started_at)
            on_done()


def _readable(headers: CIMultiDictProxy[str]) -> CIMultiDictProxy[str]:
    """Return field values that can be sent on. Values that are not UTF-8 are read as ISO 8859-1 (RFC 9110 section
    5.5)."""
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

#: Seconds for an answer of the origin to a check. Readiness waits for at most five.
LOOK_SECONDS: Final = 4.0
#: Seconds between two looks at the settings while they disable the checks.
UNWATCHED_SECONDS: Final = 5.0
#: Seconds between two lines about the same problem.
REMIND_SECONDS: Final = 3600.0
#: The beginning of problems with the origin's certificate.
UNTRUSTED: Final = "its certificate is not believed"
LIVENESS: Final = "/-/liveness"

_PAGE: Final = "Settings → Repository → External storage"
_NO_TOKEN = f"No storage token is set: set storage_token_file to a file with the token that the origin has in {_PAGE}."
_WRONG_TOKEN = f"The storage token is wrong: the origin has another one in {_PAGE}."
_ITSELF = "The origin {origin} leads back to this edge: set origin to where the service itself listens."
_REDIRECTED = (
    "The origin sends the edge to the external storage, as it does with users: it does not see the edge's storage"
    " token. Set storage_token_file, and origin_flavour to what the origin is."
)


class OriginHealth:
    """The known state of the origin. `problem` is one sentence for operators, or None if no problem is known."""

    def __init__(self, origin: "Origin", settings: Settings) -> None:
        self._origin = origin
        self._settings = settings
        self._asked_at = float("-inf")
        self._checking = asyncio.Lock()
        self._unreachable: str | None = None
        self._refused: str | None = None
        self._was_right = False
        self._shown: str | None = None
        self._reported_at = float("-inf")
        self._changed = asyncio.Event()
        self.token: Literal["right", "wrong", "unknown"] = "unknown"

    @property
    def reachable(self) -> bool:
        """Whether the origin answered the last time."""
        return self._unreachable is None

    @property
    def problem(self) -> str | None:
        """The problem and its remedy, or None."""
        if self._unreachable or self._refused:
            return self._unreachable or self._refused
        return None if self._settings.storage_token else _NO_TOKEN

    async def check(self) -> None:
        """Check readiness. Raise `Failed` or `Degraded` if there is a problem. A wrong token is `Degraded` if it was
        right before: it was probably changed in the service for all edges, which can still serve stored objects."""
        await self.probe()
        if self.problem is not None:
            can_serve = self.reachable and (self.token != "wrong" or self._was_right)
            raise (Degraded if can_serve else Failed)(self.problem)

    async def probe(self) -> None:
        """Ask the origin how it is, once for all concurrent callers."""
        wanted_at = time.monotonic()
        async with self._checking:
            if self._asked_at < wanted_at:
                self._asked_at = time.monotonic()
                await self._probe()
                self._report()

    def forget(self) -> None:
        """Reset the state after a change of settings, and make `watch` ask again."""
        self._unreachable, self._refused, self.token = None, None, "unknown"
        self._reported_at = float("-inf")
        self._changed.set()

    async def watch(self) -> None:
        """Ask the origin at regular intervals, for operators who only read logs and metrics. Never return."""
        while True:
            if self._settings.origin_check_interval:
                await self.probe()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.origin_check_interval or UNWATCHED_SECONDS):
                    await self._changed.wait()
            self._changed.clear()

    def saw(self, uri: str, status: int, headers: Mapping[str, str], *, is_anonymous: bool) -> None:
        """Derive from the origin's answer to a request for an object whether the token is right."""
        if status in (200, 304) and self._settings.storage_token:
            self.token, self._refused = "right", None
        elif 300 <= status < 400 and _is_back(uri, headers.get("Location", "")):
            self._is_refused(_REDIRECTED)
        elif status == 403 and is_anonymous and self._settings.storage_token:
            self._is_refused(_WRONG_TOKEN)

    def _is_refused(self, reason: str) -> None:
        self.token, self._refused = "wrong", reason
        self._report()

    def _report(self) -> None:
        now = time.monotonic()
        self._was_right |= self.token == "right"
        if self.problem == self._shown and (self._shown is None or now - self._reported_at < REMIND_SECONDS):
            return
        self._shown, self._reported_at = self.problem, now
        if self.problem is None:
            log.info("the origin can be used again")
        else:
            log.warning("the origin cannot be used as it should", problem=self.problem)

    async def _probe(self) -> None:
        settings = self._settings
        origin = str(settings.origin_url).rstrip("/")
        until = time.monotonic() + min(settings.origin_timeout, LOOK_SECONDS)
        try:
            status, _ = await self._answer("GET", origin + LIVENESS, until)
            # GitLab shows its health only to registered addresses. Others get 404.
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
        """Judge the token by an answer. A public path is a better sign than others; a redirect to sign in is none."""
        if status == 404 and path == NO_FILE:
            self.token, self._refused = "right", None
        else:
            self.saw(str(self._settings.origin_url).rstrip("/") + path, status, headers, is_anonymous=True)

    async def _answer(self, method: str, uri: str, until: float) -> tuple[int, Mapping[str, str]]:
        received = await self._origin.head(method, uri, None, {}, until - time.monotonic())
        received.connection.release()
        status = received.message.code
        if status == HTTPStatus.LOOP_DETECTED:
            raise OriginError(status, "The address of the origin is this edge's own.")
        return status, received.message.headers


def _no_answer(origin: str, error: OriginError) -> str:
    if not isinstance(error, NoAnswer):
        return _ITSELF.format(origin=origin)
    reason = error.details.get("reason", "")
    problem = f"{str(error).removesuffix('.')}: {reason.rstrip('.')}." if reason else str(error)
    if reason.startswith(UNTRUSTED):
        return f"{problem} Set origin_ca to whoever signs it, and origin_tls_name to a name that it bears."
    return f"{problem} Does it run, and is {origin} where it is?"


def _is_back(uri: str, location: str) -> bool:
    """Return whether a redirect goes to the same path at another host, where the origin believes that its external
    storage is."""
    try:
        requested, target = urlsplit(uri), urlsplit(location)
    except ValueError:
        return False
    return bool(target.netloc) and target.netloc != requested.netloc and target.path == requested.path


VIA: Final = "1.1 forgelet-edge"
#: Idle connections are closed before common servers close them, because a request that meets a closing connection has
#: to be sent again.
IDLE_SECONDS: Final = 4.0
#: Bytes of a body that are read ahead of its readers.
READ_AHEAD: Final = 256 * 1024
#: The longest status line or field of an answer.
LONGEST_LINE: Final = 32 * 1024
#: Seconds between two lines about the same failure. Outages are long, and `OriginHealth` logs their beginning and end.
LOG_SECONDS: Final = 60.0


class Origin:
    """A client of the service, which sends the storage's token and the user's. `use` applies changed settings."""

    def __init__(self, settings: Settings, metrics: Metrics, name: str) -> None:
        """Create a client. `name` identifies this process, so that it recognises its own requests if they come back
        (`CDN-Loop`)."""
        self._settings = settings
        self._metrics = metrics
        self._places = ConcurrencyLimiter(1, 1)
        self._rates = Rates()
        self._log = ThrottledLog(log, LOG_SECONDS)
        self.health = OriginHealth(self, settings)
        # The number of places is the limit.
        self._connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS)
        self._own_fields = {"Via": VIA, "CDN-Loop": name}
        self.use(settings, origin_context(settings))

    def use(self, settings: Settings, context: ssl.SSLContext | None) -> None:
        """Use these settings for requests from now on. `context` is their `origin_context`."""
        self._settings = settings
        self._token_headers = settings.token_headers
        self._storage = (
            {self._token_headers.storage: str(settings.storage_token)} if settings.storage_token else {}
        )
        self._ssl: Any = True if context is None else context
        self._server_name = settings.origin_tls_name or None
        self._destinations: dict[str, aiohttp.ClientRequest] = {}
        self._timeout = aiohttp.ClientTimeout(
            connect=settings.origin_connect_timeout,
            sock_read=settings.origin_read_timeout or settings.origin_timeout,
        )
        self._places.resize(
            settings.origin_connections,
            settings.origin_connections_per_address,
            settings.origin_queue_timeout,
        )
        self._rates.limit(settings.client_origin_rate, settings.client_origin_burst)

    @property
    def at_work(self) -> int:
        """The number of requests for objects that hold a place."""
        return self._places.in_use

    def forget_clients(self) -> None:
        """Reset the counts of clients' requests."""
        self._rates.forget()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connector.close()

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
        """Send one request and follow no redirect. It holds a place of the `client` until its answer is read. Raise
        `OriginError` if there is no answer, or an impossible one, and `OriginBusy` if no place becomes free or the
        client asks too often."""
        await self._admitted(client)

        def done() -> None:
            self._places.release(client)

        def broken(error: Exception) -> None:
            self._failed("stopped", "origin stopped early", uri, reason=type(error).__name__)

        try:
            with self._metrics.timed("head"):
                received = await self.head(
                    method, uri, token, {**fields, **conditions}, self._settings.origin_timeout
                )
        except BaseException as error:
            done()
            if isinstance(error, NoAnswer):
                self._failed(error.failure, error.event, uri, **error.details)
            raise
        response = received.message
        self.health.saw(uri, response.code, response.headers, is_anonymous=token is None)
        if selection.can_answer(response.code, conditional=bool(conditions)):
            return OriginResponse(received, self._metrics, done, broken)
        received.connection.close()
        done()
        self._failed("mismatched", "origin gave an answer to another question", uri, status=response.code)
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
                await self._places.acquire(client)
            except TooBusy as error:
                self._metrics.origin_failed("busy")
                self._log.warning("too many requests for the origin", about=client, client=client)
                raise OriginBusy(client if isinstance(error, ShareTaken) else None) from None

    async def head(
        self, method: str, uri: str, token: str | None, fields: dict[str, str], seconds: float
    ) -> Received:
        """Return the head of an answer without holding a place. Raise `NoAnswer`, which is not logged here."""
        fields |= self._storage
        if token is not None:
            fields[self._token_headers.user] = token
        try:
            async with asyncio.timeout(seconds):
                return await self._send(method, uri, fields)
        except TimeoutError as error:
            phase = "connect" if isinstance(error, aiohttp.ConnectionTimeoutError) else "head"
            raise NoAnswer(504, "timeout", "origin did not answer in time", phase=phase) from error
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise NoAnswer(502, "unreachable", "origin could not be reached", reason=_why(error)) from error
        except (aiohttp.ClientError, HttpProcessingError, ValueError) as error:
            reason = type(error).__name__
            raise NoAnswer(502, "unreadable", "origin's answer cannot be read", reason=reason) from error

    def _failed(self, failure: Failure, event: str, uri: str, **fields: Any) -> None:
        """Log a failure, at most one line per minute for the same reason."""
        self._metrics.origin_failed(failure)
        about = next(iter(fields.values()), None)
        self._log.warning(event, about=about, target=uri, **fields)

    async def _send(self, method: str, uri: str, fields: dict[str, str]) -> Received:
        """Send an idempotent request. Repeat it as long as it meets only idle connections that the origin has closed
        (RFC 9110 section 9.2.2, RFC 9112 section 9.3.1). Raise what aiohttp raises.

        Of aiohttp, only connections and the parser are used: its session takes three times as long.
        """
        path = uri.index("/", len("https://"))
        destination = self._destination(uri[:path])
        head = request_head(f"{method} {uri[path:]} HTTP/1.1", {**destination.headers, **fields})
        while True:
            connection, is_new = await self._connected(destination)
            try:
                return await self._answered(connection, head, has_body=method != "HEAD")
            except BaseException as error:
                connection.close()
                if is_new or not isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
                    raise

    def _destination(self, origin: str) -> aiohttp.ClientRequest:
        """Return what aiohttp has to know for connecting to an origin, with the fields of all requests to it."""
        destination = self._destinations.get(origin)
        if destination is None:
            destination = self._destinations[origin] = aiohttp.ClientRequest(
                "GET",
                URL(origin),
                headers=self._own_fields,
                skip_auto_headers=["Accept", "Accept-Encoding", "User-Agent"],
                ssl=self._ssl,
                server_hostname=self._server_name,
            )
        return destination

    async def _connected(self, destination: aiohttp.ClientRequest) -> tuple[Connection, bool]:
        """Return a connection, and whether it is new."""
        start = time.perf_counter()
        try:
            connection = await self._connector.connect(destination, [], self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError from error
        # `_answered` sets the timeout of each connection that it uses.
        is_new = connection.protocol is not None and connection.protocol.read_timeout is None
        if is_new:
            self._metrics.origin_took("connect", time.perf_counter() - start)
        return connection, is_new

    async def _answered(self, connection: Connection, head: bytes, *, has_body: bool) -> Received:
        """Send the head of a request, and return its final answer."""
        protocol, transport = connection.protocol, connection.transport
        if protocol is None or transport is None:
            raise aiohttp.ClientConnectionResetError
        protocol.set_response_params(
            skip_payload=not has_body,
            read_until_eof=True,
            auto_decompress=False,
            read_timeout=self._timeout.sock_read,
            read_bufsize=READ_AHEAD,
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_LINE,
        )
        transport.write(head)
        while True:
            message, content = await protocol.read()
            if not 100 <= message.code < 200 or message.code == HTTPStatus.SWITCHING_PROTOCOLS:
                return Received(message, content, connection)


def request_head(line: str, fields: Mapping[str, str]) -> bytes:
    """Return the head of a request. Raise `ValueError` if it would be another one."""
    lines = [line, *(f"{name}: {value}" for name, value in fields.items())]
    head = "\r\n".join((*lines, "", ""))
    if head.count("\r") + head.count("\n") != 2 * (len(lines) + 1) or "\0" in head:
        raise ValueError("a line break or NUL in a field")
    return head.encode()


def _why(error: Exception) -> str:
    """Return the reason for a missing connection, for operators."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        certificate_error = error.certificate_error
        return f"{UNTRUSTED}: {getattr(certificate_error, 'verify_message', certificate_error)}"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"TLS failed: {error.os_error}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"nobody has the name {error.host}"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return type(error).__name__
