"""Notifying the storage edges that the responses they store have changed (decision D9), and reading their
status.

A pending notification is recorded with the change, and sent once before the request that made the change is
answered: after the answer no reachable edge serves outdated responses. Notifications that could not be sent
remain recorded; the queue sends them together as soon as the edge can be reached again. An edge that has
missed more than is recorded, or whose past is unknown, is purged of everything.

The edges are recorded too: all edges listed by any server that is running or was running a moment ago. So
servers with different lists notify the same edges.
"""

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlencode

import aiohttp
import attrs
import orjson
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from api_server.outbound import queries
from api_server.outbound.destinations import written_url
from api_server.outbound.queries import Edge, Notice, Pending
from api_server.services import Key, Services
from api_server.settings import Settings
from api_server.state.database import Database, Transaction
from api_server.state.errors import LockNotAvailable, Unavailable
from api_server.state.queue import enqueue
from api_server.web import context
from common.lifecycle import Degraded
from common.logs import ThrottledLog

#: Maximum bytes of an answer: a page of stored responses has a thousand URLs.
MAX_ANSWER_BYTES = 16 * 2**20


class EdgeRefuses(Exception):
    """The edge has refused the request; `status` is that of its answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the edge answers {status}")
        self.status = status


@attrs.frozen
class EdgeApi:
    """The operators' routes of one edge. All methods raise `EdgeRefuses`, aiohttp.ClientError and
    TimeoutError; 401 means a wrong token, 404 an edge without a token."""

    url: str
    token: str = attrs.field(repr=False)
    session: aiohttp.ClientSession
    #: Seconds for one request.
    timeout: float

    async def purge(self, document: Mapping[str, Any]) -> int:
        """Purge `{"keys": [...], "urls": [...], "prefixes": [...]}` and return the number of purged
        responses."""
        answer = await self._ask("POST", "/-/purge", json=document)
        return int(answer.get("purged", 0))

    async def status(self) -> dict[str, Any]:
        """Return version, start, requests, bytes, tiers, purges, and the state of its origin; docs/edge.md
        explains the fields."""
        return await self._ask("GET", "/-/status")

    async def stored(
        self, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return the stored responses of URLs whose path begins with `prefix`, and the position of the next
        page, or None."""
        parameters = {"prefix": prefix, "limit": str(limit)} | ({"after": after} if after else {})
        answer = await self._ask("GET", f"/-/stored?{urlencode(parameters)}")
        return list(answer["stored"]), answer.get("next")

    async def set_back(self, ahead: float) -> None:
        """Reset an edge for tests: delete everything, and set its clock `ahead` seconds ahead of the
        machine's."""
        await self._ask("POST", "/-/testing/reset", json={"ahead": ahead})

    async def set_clock(self, ahead: float) -> None:
        """Set the clock of an edge for tests `ahead` seconds ahead of the machine's."""
        await self._ask("POST", "/-/testing/clock", json={"ahead": ahead})

    async def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        async with self.session.request(
            method,
            written_url(f"{self.url.rstrip('/')}{path}"),
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=aiohttp.ClientTimeout(total=self.timeout),
            allow_redirects=False,
            **options,
        ) as answer:
            if not 200 <= answer.status < 300:
                raise EdgeRefuses(answer.status)
            if answer.status == 204:
                return {}
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise aiohttp.ClientPayloadError(f"more than {MAX_ANSWER_BYTES} bytes")
            document = orjson.loads(body)
            return document if isinstance(document, dict) else {}


log = ThrottledLog(structlog.get_logger(__name__))

TASK = "purge_edges"
#: Seconds between two attempts to notify an edge of what it has missed.
EVERY_SECONDS = 5
#: The request that has made a younger change is still notifying the edges.
UNDER_WAY = datetime.timedelta(seconds=5)
#: An edge that has missed more changes than this is purged of everything.
MAX_PENDING = 1000
#: Operators are warned of an edge that could not be notified for this long.
TIMEOUT = datetime.timedelta(seconds=15)
#: The interval at which a server renews the records of its edges, and the age after which a record that no
#: server renews is deleted: long enough for a server to restart.
LISTED_ANEW = datetime.timedelta(seconds=20)
UNLISTED = datetime.timedelta(seconds=60)
_EVERYTHING = {"prefixes": ["/"]}


@attrs.define
class _Changes:
    """The changes of a request: surrogate keys, and the rows of pending notifications."""

    keys: set[str] = attrs.field(factory=set)
    notices: list[Notice] = attrs.field(factory=list)


_changes: ContextVar[_Changes | None] = ContextVar("noted", default=None)


def project_key(project_id: int) -> str:
    """Return the surrogate key of everything that belongs to a project."""
    return f"project-{project_id}"


async def changed(transaction: Transaction, *keys: str) -> None:
    """Record that responses stored under `keys` must not be served any more once the transaction has
    committed."""
    if not keys:
        return
    notices = await queries.add_notices(transaction, sorted(keys))
    changes = _changes.get()
    if changes is not None:
        changes.keys.update(keys)
        changes.notices += notices
    elif notices:  # background work does not notify edges at its end
        await enqueue(transaction, TASK, queueing_lock=TASK)


class Edges:
    """The purge APIs of the edges; calls to addresses that users name go through `outbound/client.py`."""

    def __init__(self, settings: Settings, session: aiohttp.ClientSession, database: Database) -> None:
        self._urls = [url.rstrip("/") for url in settings.edge_urls]
        self._settings = settings
        self._session = session
        self._database = database
        #: The time since which other servers have been able to record their edges.
        self._since = database.now
        self._catching_up = asyncio.Lock()

    async def list_own(self) -> None:
        """Record the edges that this server lists, repeatedly; a new edge needs no notification of earlier
        changes. Delete those that no server lists any more."""
        now = self._database.now
        async with self._database.transaction() as transaction:
            await queries.list_them(transaction, self._urls, now - LISTED_ANEW)
            if now - self._since >= UNLISTED:
                await queries.forget(transaction, now - UNLISTED)
            transaction.has_written = False  # edges are not cached

    async def apis(self) -> list[EdgeApi]:
        """Return the APIs of all edges, whichever servers list them."""
        return [self._api(edge.url) for edge in await queries.all_edges(self._database)]

    async def notify(self, keys: Sequence[str], notices: Sequence[Notice]) -> None:
        """Notify all edges of `notices` at the same time, and wait for each of them as long as the setting says.
        Notifications that fail remain recorded for `catch_up`."""
        document = {"keys": sorted(keys)}
        urls = {notice.edge_id: notice.url for notice in notices}
        outcomes = await asyncio.gather(*(self._notify(*edge, document) for edge in urls.items()))
        problems = {edge_id: problem for edge_id, problem in zip(urls, outcomes, strict=True) if problem}
        delivered = [notice.id for notice in notices if notice.edge_id not in problems]
        if not (delivered or problems):
            return
        async with self._database.transaction() as transaction:
            if delivered:
                await queries.settle(transaction, delivered)
            for edge_id, problem in problems.items():
                await queries.set_failing_while_owed(transaction, edge_id, problem)

    async def catch_up(self, age: datetime.timedelta = datetime.timedelta()) -> None:
        """Notify each edge of what it has missed, except for the last `age`."""
        async with self._catching_up:
            until = self._database.now - age
            edges = await queries.all_edges(self._database)
            await asyncio.gather(*(self._catch_up(edge, until) for edge in edges))

    async def statuses(self) -> dict[str, dict[str, Any] | str]:
        """Return the status of each edge (`GET /-/status`) by its URL, or one sentence that says why it
        cannot be read. Leave out edges without such a page."""
        apis = await self.apis()
        answers = await asyncio.gather(*map(_status, apis))
        return {api.url: status for api, status in zip(apis, answers, strict=True) if status is not None}

    def _api(self, url: str) -> EdgeApi:
        settings = self._settings
        return EdgeApi(url, settings.edge_purge_token, self._session, settings.edge_purge_timeout)

    async def set_back(self, ahead: float) -> list[str]:
        """Reset all edges of a service for tests, and set their clocks `ahead` seconds ahead of the
        machine's. Return one sentence for each failure."""
        return await self._have_all(lambda api: api.set_back(ahead))

    async def set_clock(self, ahead: float) -> list[str]:
        """Set only their clocks, like `set_back`."""
        return await self._have_all(lambda api: api.set_clock(ahead))

    async def _have_all(self, act: Callable[[EdgeApi], Awaitable[None]]) -> list[str]:
        apis = await self.apis()
        problems = await asyncio.gather(*(_problem_of(act(api)) for api in apis))
        return [f"{api.url}: {problem}" for api, problem in zip(apis, problems, strict=True) if problem]

    async def check(self) -> None:
        """Raise `Degraded` if edges cannot be notified."""
        edges, since = await queries.all_edges(self._database), self._database.now - TIMEOUT
        failing = [edge for edge in edges if edge.failing_since is not None and edge.failing_since < since]
        if failing:
            raise Degraded(f"{len(failing)} of {len(edges)} storage edges cannot be told of changes")

    async def _catch_up(self, edge: Edge, until: datetime.datetime) -> None:
        while (pending := await queries.pending(self._database, edge.id, until, MAX_PENDING)) is not None:
            if not (pending.ids or pending.everything):
                async with self._database.transaction() as transaction:  # others have notified it
                    await queries.set_notified(transaction, edge.id, everything=False)
                return
            everything = pending.everything or len(pending.ids) == MAX_PENDING
            problem = await self._notify(
                edge.id, edge.url, _EVERYTHING if everything else {"keys": sorted(pending.keys)}
            )
            await self._record(edge, pending, everything=everything, problem=problem)
            if problem or len(pending.ids) < MAX_PENDING:
                return

    async def _record(self, edge: Edge, pending: Pending, *, everything: bool, problem: str | None) -> None:
        """Record the result, and delete the notifications that a purge of everything, past or pending,
        includes."""
        async with self._database.transaction() as transaction:
            if problem is None or everything:
                await queries.settle(transaction, pending.ids)
            if problem is None:
                await queries.set_notified(transaction, edge.id, everything=everything)
            else:
                await queries.set_failing(transaction, edge.id, problem, purge_everything=everything)

    async def _notify(self, edge_id: int, url: str, document: Mapping[str, Any]) -> str | None:
        """Notify an edge. Return the reason of a failure in one sentence, or None."""
        reason = await _problem_of(self._api(url).purge(document))
        if reason is not None:
            log.warning("an edge cannot be told", about=edge_id, edge=url, reason=reason)
        return reason


async def _status(api: EdgeApi) -> dict[str, Any] | str | None:
    try:
        return await api.status()
    except EdgeRefuses as problem:
        return None if problem.status == 404 else refusal(problem.status)
    except ValueError:
        return None
    except (aiohttp.ClientError, OSError) as problem:
        return f"It does not answer ({type(problem).__name__})"


async def _problem_of(call: Awaitable[object]) -> str | None:
    """Return one sentence that says why a call to an edge failed, or None."""
    try:
        await call
    except EdgeRefuses as problem:
        return refusal(problem.status)
    except (aiohttp.ClientError, OSError, ValueError) as problem:  # TimeoutError is one
        return f"It does not answer ({type(problem).__name__})"
    return None


def refusal(status: int) -> str:
    """Return the meaning of the status of an edge's answer, in one sentence."""
    if status in (401, 403):
        return f"It refuses the token of this service ({status})"
    if status == 404:
        return "There is no storage edge with a purge token at this address (404)"
    return f"It answers {status}"


EDGES = Key[Edges]("edges")


def setup(services: Services) -> None:
    """Register the background work that notifies edges of what they have missed."""

    async def purge_edges(**_of_earlier_versions: Any) -> None:
        await services[EDGES].catch_up()

    async def catch_up() -> None:
        await services[EDGES].catch_up(UNDER_WAY)

    services.queue.add(TASK, purge_edges)
    services.queue.add_periodic(
        "catch_up_edges",
        f"* * * * * */{EVERY_SECONDS}",
        catch_up,
        begun_here=bool(services.settings.edge_urls),
    )


@web.middleware
async def notify_edges(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Notify the edges of the request's changes before it is answered."""
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return await handler(request)
    token = _changes.set(_Changes())
    try:
        return await handler(request)
    finally:
        await notify_now(context.services(request))
        _changes.reset(token)


async def notify_now(services: Services) -> None:
    """Notify the edges like `notify_edges`, for handlers that stream their answer and are nearly done."""
    changes = _changes.get()
    if changes is None or not changes.keys:
        return
    keys, notices = sorted(changes.keys), list(changes.notices)
    changes.keys.clear()
    changes.notices.clear()
    try:
        await services[EDGES].notify(keys, notices)
    except (Unavailable, LockNotAvailable):  # from the database: edges are only notified again
        log.warning("the notifications of edges could not be recorded")
