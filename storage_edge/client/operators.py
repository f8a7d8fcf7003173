"""Routes for holders of the purge token: purges, status, and the list of stored responses.

An edge of a server for tests also has controls, which empty it and move its clock with the service's.
"""

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import attrs
import orjson
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from common import static_paths
from common.client_address import PRIVATE_NETWORKS, is_in, networks
from common.concurrency import ended
from common.connections import BodyTooSlow, ask_for_body
from common.lifecycle import Degraded
from common.logs import ThrottledLog
from storage_edge.cache.origin import RETRY_AFTER, Origin
from storage_edge.client.callers import CALLER
from storage_edge.client.handlers import METRICS, RATES, RULES, SETTINGS, STORE
from storage_edge.storage import purges
from storage_edge.storage.purges import EVERYTHING
from storage_edge.storage.store import MAX_EXAMINED, Entry

log = structlog.get_logger(__name__)
_throttled = ThrottledLog(log)

ORIGIN = web.AppKey("origin", Origin)
#: The time at which the process began, in seconds since 1970, and its clock.
STARTED_AT = web.AppKey("started_at", float)
#: The number of responses on a page of `/-/stored`.
PAGE = 100
VERSION = metadata.version("forgelet")

_NO_TOKEN = (
    "Somebody purges here, but no purge token is set: set purge_token_file to the file that the service has."
)
_OTHER_TOKEN = (
    "Somebody purges here with another token than that in purge_token_file: the service needs the same one."
)


class PurgeTrouble:
    """The reason why the last purge was refused, or None if it was not."""

    def __init__(self) -> None:
        self.problem: str | None = None

    async def check(self) -> None:
        """Check readiness: while purges fail, outdated responses are still served."""
        if self.problem is not None:
            raise Degraded(self.problem)


TROUBLE = web.AppKey("purge_trouble", PurgeTrouble)


def setup(app: web.Application, clock: Any) -> None:
    """Add the routes. `clock` returns seconds since 1970."""

    async def show_status(http: web.Request) -> web.Response:
        await http.app[ORIGIN].health.probe()
        return web.json_response(_status(http.app))

    async def show_stored(http: web.Request) -> web.Response:
        return await _stored(http, clock())

    app[STARTED_AT] = clock()
    app[TROUBLE] = PurgeTrouble()
    app.router.add_post("/-/purge", for_purgers(_purge))
    app.router.add_get("/-/status", for_purgers(show_status))
    app.router.add_get("/-/stored", for_purgers(show_stored))


def for_purgers(handler: Handler) -> Handler:
    """Answer 401 without the purge token, and 404 if none is set."""

    async def answer(http: web.Request) -> web.StreamResponse:
        expected = str(http.app[SETTINGS].purge_token)
        scheme, _, token = http.headers.get("Authorization", "").partition(" ")
        right = hmac.compare_digest(token.strip().encode(errors="replace"), expected.encode())
        if expected and scheme.lower() == "bearer" and right:
            return await handler(http)
        if http.method == "POST":
            _refused(http, _OTHER_TOKEN if expected else _NO_TOKEN)
        if not expected:
            return web.json_response({"error": "404 Not Found"}, status=404)
        return web.json_response({"message": "401 Unauthorized"}, status=401)

    return answer


def _refused(http: web.Request, reason: str) -> None:
    """Log a refused request quietly, since everybody may try."""
    http.app[METRICS].purges["refused"] += 1
    address, settings = http[CALLER].address, http.app[SETTINGS]
    _throttled.warning("a purge was refused", about=address, client=address, problem=reason)
    if "Authorization" in http.headers and is_in(
        networks(settings.operations_networks or PRIVATE_NETWORKS), address
    ):
        http.app[TROUBLE].problem = reason


async def _purge(http: web.Request) -> web.Response:
    """Handle POST /-/purge: JSON `{"keys": [...], "urls": [...], "prefixes": [...], "soft": false}` -> `{"purged":
    n}`.

    401 without the purge token, 400 for a body that is not such a document. After 200, nothing that was stored
    before is served any more, not even after a crash, whatever the state of the disk: a full disk takes purges, too,
    and a purge that does not fit becomes a purge of everything. 503 if the purge holds but may not survive a crash of
    the machine; the client should repeat it. A purge is carried out even if its client leaves.
    """
    try:
        await ask_for_body(http)
        purge = purges.parse(orjson.loads(await http.read()), http.app[RULES].origin)
    except BodyTooSlow as error:
        return web.json_response({"error": str(error)}, status=408)
    except orjson.JSONDecodeError:
        return web.json_response({"error": "The body is not JSON."}, status=400)
    except purges.PurgeRequestError as error:
        return web.json_response({"error": str(error)}, status=400)
    return await ended(asyncio.create_task(_carried_out(http, purge)))


async def _carried_out(http: web.Request, purge: purges.Purge) -> web.Response:
    metrics, clock = http.app[METRICS], asyncio.get_running_loop().time
    start = clock()
    http.app[TROUBLE].problem = None
    try:
        count = await http.app[STORE].purge(purge)
    except OSError as error:
        metrics.purges["failed"] += 1
        log.warning("a purge may not outlive a crash", reason=error.strerror)
        message = {"message": "The purge may not outlive a crash of the machine."}
        return web.json_response(message, status=503, headers={"Retry-After": RETRY_AFTER})
    metrics.purge_done(count, clock() - start)
    log.info("purged", responses=count, soft=purge.soft)
    return web.json_response({"purged": count})


def _status(app: web.Application) -> dict[str, Any]:
    metrics, store, health, settings = app[METRICS], app[STORE], app[ORIGIN].health, app[SETTINGS]
    outcomes: dict[str, int] = {}
    for (_, outcome), number in metrics.requests.items():
        outcomes[outcome.name.lower()] = outcomes.get(outcome.name.lower(), 0) + number
    memory, disk = store.memory, store.disk
    return {
        "version": VERSION,
        "started_at": _iso(app[STARTED_AT]),
        "requests": outcomes,
        "responses": {str(status): number for status, number in sorted(metrics.responses.items())},
        "bytes": {"sent": metrics.bytes_sent, "from_origin": metrics.bytes_from_origin},
        "stored": {
            "memory": {"responses": len(memory), "bytes": memory.used, "limit": memory.limit},
            "disk": {
                "responses": disk.responses,
                "bytes": disk.size,
                "limit": disk.budget,
                "problem": disk.problem or None,
            },
        },
        "evictions": memory.evicted + disk.evicted,
        "purges": {
            "done": metrics.purges["done"],
            "failed": metrics.purges["failed"],
            "refused": metrics.purges["refused"],
            "last_at": None if metrics.last_purge is None else _iso(metrics.last_purge),
            "problem": app[TROUBLE].problem,
        },
        "origin": {
            "url": str(settings.origin_url),
            "reachable": health.reachable,
            "token": health.token,
            "problem": health.problem,
        },
    }


async def _stored(http: web.Request, now: float) -> web.Response:
    """Handle GET /-/stored?prefix=&after=&limit= -> a page of stored responses in the order of URLs. `after` is
    `next` of the page before. `prefix` is the beginning of a path of this edge's origin, or of a URL. 400 for
    invalid parameters."""
    prefix = http.query.get("prefix", "")
    if prefix.startswith("/"):
        prefix = http.app[RULES].origin + prefix
    try:
        limit = int(http.query.get("limit", PAGE))
        after = _parsed_cursor(http.query["after"]) if http.query.get("after") else ("", "")
    except ValueError:
        return web.json_response(
            {"error": "limit is a number, and after is next of another page."}, status=400
        )
    limit = max(1, min(limit, MAX_EXAMINED))
    responses = await http.app[STORE].stored(prefix, after, limit + 1)
    page = responses[:limit]
    return web.json_response(
        {
            "stored": [_entry(response, now) for response in page],
            "next": _cursor(page[-1].position) if len(responses) > limit else None,
        }
    )


def _entry(response: Entry, now: float) -> dict[str, Any]:
    return {
        "url": response.target,
        "kind": _kind(response.target),
        "status": response.status,
        "bytes": response.bytes,
        "stored_at": _iso(response.stored_at),
        "age": int(response.age(now)),
        "fresh_until": None if response.fresh_until is None else _iso(response.fresh_until),
        "hits": response.hits,
        "tier": response.tier,
        "private": response.private,
    }


def _kind(target: str) -> str | None:
    try:
        return static_paths.parse(target).kind.value
    except static_paths.StaticPathError:
        return None


def _cursor(position: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def _parsed_cursor(cursor: str) -> tuple[str, str]:
    """Decode a cursor. Raise `ValueError`."""
    read = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    if not (isinstance(read, list) and len(read) == 2 and all(isinstance(part, str) for part in read)):
        raise ValueError
    return read[0], read[1]


def _iso(seconds: float) -> str:
    """Format a moment. One that is too far away for a calendar becomes the last possible one."""
    whole, milliseconds = divmod(int(min(max(seconds, 0.0), 253_402_300_799.0) * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"


@attrs.define
class MovableClock:
    """A clock that is `ahead` seconds ahead of the clock below it."""

    _machine: Callable[[], float]
    ahead: float = 0.0

    def __call__(self) -> float:
        return self._machine() + self.ahead


def setup_controls(app: web.Application, clock: MovableClock) -> None:
    """Add the controls."""

    async def move_clock(http: web.Request) -> web.Response:
        """Handle POST /-/testing/clock `{"ahead": seconds}`: move the clock, reset the counts of clients' requests, and
        answer 204."""
        ahead = await _ahead(http)
        if ahead is None:
            return _bad_request()
        clock.ahead = ahead
        _forget_clients(app)
        return web.Response(status=204)

    async def reset(http: web.Request) -> web.Response:
        """Handle POST /-/testing/reset `{"ahead": seconds}`: remove everything, move the clock, and answer 204."""
        ahead = await _ahead(http)
        if ahead is None:
            return _bad_request()
        await app[STORE].purge(EVERYTHING)
        clock.ahead = ahead
        _forget_clients(app)
        app[TROUBLE].problem = None
        return web.Response(status=204)

    app.router.add_post("/-/testing/clock", for_purgers(move_clock))
    app.router.add_post("/-/testing/reset", for_purgers(reset))


def _forget_clients(app: web.Application) -> None:
    app[RATES].forget()
    app[ORIGIN].forget_clients()


async def _ahead(http: web.Request) -> float | None:
    try:
        document = orjson.loads(await http.read())
    except orjson.JSONDecodeError:
        return None
    ahead = document.get("ahead") if isinstance(document, dict) else None
    return float(ahead) if isinstance(ahead, int | float) else None


def _bad_request() -> web.Response:
    return web.json_response({"error": 'The body is {"ahead": seconds}.'}, status=400)
