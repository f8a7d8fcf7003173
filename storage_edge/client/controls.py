"""What only an edge of a server for tests does, for whoever has the purge token: it forgets everything, and its clock
is moved with the service's."""

from collections.abc import Callable

import attrs
import orjson
from aiohttp import web

from storage_edge.client.handlers import RATES, STORE
from storage_edge.client.operators import ORIGIN, TROUBLE, for_purgers
from storage_edge.tiers.purges import EVERYTHING


@attrs.define
class MovableClock:
    """Goes on as the clock below it does, `ahead` seconds of it."""

    _machine: Callable[[], float]
    ahead: float = 0.0

    def __call__(self) -> float:
        return self._machine() + self.ahead


def setup(app: web.Application, clock: MovableClock) -> None:
    """Adds the routes."""

    async def move_clock(http: web.Request) -> web.Response:
        """POST /-/testing/clock `{"ahead": seconds}`: 204; no client has asked too often."""
        ahead = await _ahead(http)
        if ahead is None:
            return _wrong()
        clock.ahead = ahead
        _forget_clients(app)
        return web.Response(status=204)

    async def reset(http: web.Request) -> web.Response:
        """POST /-/testing/reset `{"ahead": seconds}`: 204 when nothing is known any more of what was, and the clock is
        so much ahead."""
        ahead = await _ahead(http)
        if ahead is None:
            return _wrong()
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
        sent = orjson.loads(await http.read())
    except orjson.JSONDecodeError:
        return None
    ahead = sent.get("ahead") if isinstance(sent, dict) else None
    return float(ahead) if isinstance(ahead, int | float) else None


def _wrong() -> web.Response:
    return web.json_response({"error": 'The body is {"ahead": seconds}.'}, status=400)
