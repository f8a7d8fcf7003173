"""Telling the storage edges that what they keep has changed (decision D9), and asking them how they are.

That an edge has to be told is written down with the change, and tried once before that change's request is answered:
after the answer no edge that can be reached serves what it should not. What an edge could not be told stays written
down; the queue tells it, joined, as soon as it can be reached again. One that has missed more than is kept, or whose
past is not known, is told to forget everything.

Which edges there are is written down too: all that any server lists that runs, or ran a moment ago. So servers with
different lists tell the same edges.
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
from api_server.outbound.queries import Debt, Edge, Owed
from api_server.services import Key, Services
from api_server.settings import Settings
from api_server.state.database import Database, Transaction
from api_server.state.errors import LockNotAvailable, Unavailable
from api_server.state.queue import enqueue
from api_server.web import context
from common.lifecycle import Degraded
from common.logs import ThrottledLog

#: Bytes of an answer: a page of what is stored has a thousand URLs.
MOST_ANSWER_BYTES = 16 * 2**20


class EdgeRefuses(Exception):
    """The edge has answered, but not what it was asked for; `status` is that of its answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the edge answers {status}")
        self.status = status


@attrs.frozen
class EdgeApi:
    """The operators' routes of one edge. All methods raise `EdgeRefuses`, aiohttp.ClientError and TimeoutError; 401 is
    a wrong token, 404 an edge that has none."""

    url: str
    token: str = attrs.field(repr=False)
    session: aiohttp.ClientSession
    #: Seconds for one request.
    timeout: float

    async def purge(self, document: Mapping[str, Any]) -> int:
        """Has it forget `{"keys": [...], "urls": [...], "prefixes": [...]}`; how many responses that were."""
        answer = await self._ask("POST", "/-/purge", json=document)
        return int(answer.get("purged", 0))

    async def status(self) -> dict[str, Any]:
        """Version, start, requests, bytes, tiers, purges, and how its origin is: docs/edge.md has the fields."""
        return await self._ask("GET", "/-/status")

    async def stored(
        self, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> tuple[list[dict[str, Any]], str | None]:
        """What it has stored of URLs whose path begins with `prefix`, and where to go on after it, if more follows."""
        parameters = {"prefix": prefix, "limit": str(limit)} | ({"after": after} if after else {})
        answer = await self._ask("GET", f"/-/stored?{urlencode(parameters)}")
        return list(answer["stored"]), answer.get("next")

    async def set_back(self, ahead: float) -> None:
        """An edge for tests forgets everything, and its clock is `ahead` seconds of the machine's."""
        await self._ask("POST", "/-/testing/reset", json={"ahead": ahead})

    async def set_clock(self, ahead: float) -> None:
        """The clock of an edge for tests is `ahead` seconds of the machine's."""
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
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > MOST_ANSWER_BYTES:
                    raise aiohttp.ClientPayloadError(f"more than {MOST_ANSWER_BYTES} bytes")
            document = orjson.loads(body)
            return document if isinstance(document, dict) else {}


log = ThrottledLog(structlog.get_logger(__name__))

TASK = "purge_edges"
#: Seconds between two tries to tell an edge what it has missed.
EVERY_SECONDS = 5
#: What is younger is being told by the request that has made it.
UNDER_WAY = datetime.timedelta(seconds=5)
#: Changes that an edge has missed up to which it is told of each.
MOST_OWED = 1000
#: An edge that could not be told for so long is a matter for operators.
TIMEOUT = datetime.timedelta(seconds=15)
#: After which a server says again which edges it lists, and after which one that nobody lists is none any more: a
#: server that is started anew has time to come back.
LISTED_ANEW = datetime.timedelta(seconds=20)
UNLISTED = datetime.timedelta(seconds=60)
_EVERYTHING = {"prefixes": ["/"]}


@attrs.define
class _Noted:
    """What a request has changed: surrogate keys, and the rows that say that edges have to be told."""

    keys: set[str] = attrs.field(factory=set)
    owed: list[Owed] = attrs.field(factory=list)


_noted: ContextVar[_Noted | None] = ContextVar("noted", default=None)


def project_key(project_id: int) -> str:
    """The surrogate key of everything of a project."""
    return f"project-{project_id}"


async def changed(transaction: Transaction, *keys: str) -> None:
    """What the edges keep under `keys` must not be served again once the transaction has committed."""
    if not keys:
        return
    owed = await queries.owe(transaction, sorted(keys))
    noted = _noted.get()
    if noted is not None:
        noted.keys.update(keys)
        noted.owed += owed
    elif owed:  # background work tells nobody at its end
        await enqueue(transaction, TASK, queueing_lock=TASK)


class Edges:
    """The purge APIs of the edges; calls to addresses that users name go through `outgoing`."""

    def __init__(self, settings: Settings, session: aiohttp.ClientSession, database: Database) -> None:
        self._urls = [url.rstrip("/") for url in settings.edge_urls]
        self._settings = settings
        self._session = session
        self._database = database
        #: How long others have had to list theirs.
        self._since = database.now
        self._catching_up = asyncio.Lock()

    async def list_own(self) -> None:
        """Writes down the edges that this server lists, again and again; changes before that owe a new one nothing.
        Those that no server lists any more are forgotten."""
        now = self._database.now
        async with self._database.transaction() as transaction:
            await queries.list_them(transaction, self._urls, now - LISTED_ANEW)
            if now - self._since >= UNLISTED:
                await queries.forget(transaction, now - UNLISTED)
            transaction.has_written = False  # nobody remembers edges

    async def apis(self) -> list[EdgeApi]:
        """Of all edges, whichever servers list them."""
        return [self._api(edge.url) for edge in await queries.known(self._database)]

    async def tell(self, keys: Sequence[str], owed: Sequence[Owed]) -> None:
        """Tells the edges of `owed` all at once, and waits for each of them, as long as the setting says. Of `owed`
        stays what could not be told, for `catch_up`."""
        document = {"keys": sorted(keys)}
        each = {notice.edge_id: notice.url for notice in owed}
        outcomes = await asyncio.gather(*(self._tell(*edge, document) for edge in each.items()))
        problems = {edge_id: problem for edge_id, problem in zip(each, outcomes, strict=True) if problem}
        settled = [notice.id for notice in owed if notice.edge_id not in problems]
        if not (settled or problems):
            return
        async with self._database.transaction() as transaction:
            if settled:
                await queries.settle(transaction, settled)
            for edge_id, problem in problems.items():
                await queries.set_failing_while_owed(transaction, edge_id, problem)

    async def catch_up(self, age: datetime.timedelta = datetime.timedelta()) -> None:
        """Tells each edge what it has missed, but for the last `age`."""
        async with self._catching_up:
            until = self._database.now - age
            known = await queries.known(self._database)
            await asyncio.gather(*(self._catch_up(edge, until) for edge in known))

    async def statuses(self) -> dict[str, dict[str, Any] | str]:
        """What each edge says of itself (`GET /-/status`), by its URL; or in one sentence why it says nothing. One that
        has no such page says nothing, and is not in it."""
        apis = await self.apis()
        answers = await asyncio.gather(*map(_status, apis))
        return {api.url: status for api, status in zip(apis, answers, strict=True) if status is not None}

    def _api(self, url: str) -> EdgeApi:
        settings = self._settings
        return EdgeApi(url, settings.edge_purge_token, self._session, settings.edge_purge_timeout)

    async def set_back(self, ahead: float) -> list[str]:
        """Has all edges of a service for tests forget everything, and has their clocks be `ahead` seconds of the
        machine's. Of those that do not, why not, each in one sentence."""
        return await self._have_all(lambda api: api.set_back(ahead))

    async def set_clock(self, ahead: float) -> list[str]:
        """Likewise, of their clocks only."""
        return await self._have_all(lambda api: api.set_clock(ahead))

    async def _have_all(self, act: Callable[[EdgeApi], Awaitable[None]]) -> list[str]:
        apis = await self.apis()
        done = await asyncio.gather(*(_problem_of(act(api)) for api in apis))
        return [f"{api.url}: {problem}" for api, problem in zip(apis, done, strict=True) if problem]

    async def check(self) -> None:
        """Readiness: raises `Degraded` where edges cannot be told."""
        known, since = await queries.known(self._database), self._database.now - TIMEOUT
        failing = [edge for edge in known if edge.failing_since is not None and edge.failing_since < since]
        if failing:
            raise Degraded(f"{len(failing)} of {len(known)} storage edges cannot be told of changes")

    async def _catch_up(self, edge: Edge, until: datetime.datetime) -> None:
        while (debt := await queries.debt(self._database, edge.id, until, MOST_OWED)) is not None:
            if not (debt.ids or debt.everything):
                async with self._database.transaction() as transaction:  # others have told what was owed
                    await queries.set_told(transaction, edge.id, everything=False)
                return
            everything = debt.everything or len(debt.ids) == MOST_OWED
            problem = await self._tell(
                edge.id, edge.url, _EVERYTHING if everything else {"keys": sorted(debt.keys)}
            )
            await self._record(edge, debt, everything=everything, problem=problem)
            if problem or len(debt.ids) < MOST_OWED:
                return

    async def _record(self, edge: Edge, debt: Debt, *, everything: bool, problem: str | None) -> None:
        """What a purge of everything covers, one that was told or will be, is not written down any longer."""
        async with self._database.transaction() as transaction:
            if problem is None or everything:
                await queries.settle(transaction, debt.ids)
            if problem is None:
                await queries.set_told(transaction, edge.id, everything=everything)
            else:
                await queries.set_failing(transaction, edge.id, problem, purge_everything=everything)

    async def _tell(self, edge_id: int, url: str, document: Mapping[str, Any]) -> str | None:
        """Why it could not be told, in one sentence; None where it was."""
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
    """Why an edge has not done what it was asked for, in one sentence; None where it has."""
    try:
        await call
    except EdgeRefuses as problem:
        return refusal(problem.status)
    except (aiohttp.ClientError, OSError, ValueError) as problem:  # TimeoutError is one
        return f"It does not answer ({type(problem).__name__})"
    return None


def refusal(status: int) -> str:
    """What the status means that an edge answers, in one sentence."""
    if status in (401, 403):
        return f"It refuses the token of this service ({status})"
    if status == 404:
        return "There is no storage edge with a purge token at this address (404)"
    return f"It answers {status}"


EDGES = Key[Edges]("edges")


def setup(services: Services) -> None:
    """Registers the work that tells edges what they have missed."""

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
async def tell_edges(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Tells what the request has changed before it is answered."""
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return await handler(request)
    token = _noted.set(_Noted())
    try:
        return await handler(request)
    finally:
        await tell_now(context.services(request))
        _noted.reset(token)


async def tell_now(services: Services) -> None:
    """What `tell_edges` does, for handlers that stream their answer and are nearly done."""
    noted = _noted.get()
    if noted is None or not noted.keys:
        return
    keys, owed = sorted(noted.keys), list(noted.owed)
    noted.keys.clear()
    noted.owed.clear()
    try:
        await services[EDGES].tell(keys, owed)
    except (Unavailable, LockNotAvailable):  # of the database: edges are told once more, that is all
        log.warning("what edges were told could not be written down")
