"""The controls of state and time, below /-/testing."""

import datetime
import math
from collections.abc import Callable, Iterable

from aiohttp import web

from api_server.testing import CONTROLS, time_travel
from api_server.testing.clock import written
from api_server.testing.snapshots import SNAPSHOTS, START, Snapshot
from api_server.testing.steering import refused, sent_object
from api_server.web import context
from api_server.web.answers import json_value, no_content

#: What other controls forget with a reset (not with a restore): called without arguments.
ON_RESET: web.AppKey[Iterable[Callable[[], object]]] = web.AppKey("on_reset")


async def reset(request: web.Request) -> web.Response:
    """204 when everything is as at the start, the clock as well."""
    await request.app[SNAPSHOTS].bring_back(START, also=request.app[ON_RESET])
    return no_content()


async def take_snapshot(request: web.Request) -> web.Response:
    """201 `{"id", "time"}`; with `{"as": "start"}` it is what a reset goes back to from now on."""
    name = (await sent_object(request)).get("as") if request.body_exists else None
    if name not in (None, START):
        raise refused('"as" can be "start" only.')
    taken = await request.app[SNAPSHOTS].take(as_start=name == START)
    return json_value(_shown(taken), status=201)


async def list_snapshots(request: web.Request) -> web.Response:
    """200 with `{"id", "time"}` of each, the oldest first."""
    return json_value([_shown(one) for one in request.app[SNAPSHOTS].kept])


async def delete_snapshot(request: web.Request) -> web.Response:
    """204, or 404."""
    await request.app[SNAPSHOTS].delete(request.match_info["id"])
    return no_content()


async def restore(request: web.Request) -> web.Response:
    """`{"id"}`: 204 when everything is as at that snapshot, or 404."""
    wanted = (await sent_object(request)).get("id")
    if not isinstance(wanted, str):
        raise refused('Say which snapshot: {"id": "..."}.')
    await request.app[SNAPSHOTS].bring_back(wanted)
    return no_content()


async def show_clock(request: web.Request) -> web.Response:
    """200 `{"now"}`."""
    return json_value({"now": written(context.now(request))})


async def move_clock(request: web.Request) -> web.Response:
    """`{"advance": seconds}` or `{"now": moment}`: 200 `{"now", "left"}` when what became due is done, but for what
    `left` names."""
    by = _move(await sent_object(request), context.now(request))
    left = await time_travel.move(request.app, by)
    return json_value({"now": written(context.now(request)), "left": left})


async def settle(request: web.Request) -> web.Response:
    """200 `{"left"}` when no work is due or under way, but for what it names."""
    return json_value({"left": await request.app[SNAPSHOTS].settle()})


def _move(wanted: dict[str, object], now: datetime.datetime) -> datetime.timedelta:
    match wanted:
        case {"advance": int() | float() as seconds} if len(wanted) == 1 and not isinstance(seconds, bool):
            if math.isfinite(seconds) and abs(seconds) <= time_travel.FURTHEST.total_seconds():
                return datetime.timedelta(seconds=seconds)
        case {"now": str(text)} if len(wanted) == 1 and (moment := _moment(text)) is not None:
            return moment - now
    raise refused('Send {"advance": seconds}, or {"now": "2027-01-01T00:00:00Z"}; at most 100 years ahead.')


def _moment(text: str) -> datetime.datetime | None:
    """Nothing for what is no moment, or says no offset from UTC."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _shown(snapshot: Snapshot) -> dict[str, str]:
    return {"id": snapshot.id, "time": written(snapshot.at)}


ROUTES = [
    web.post(f"{CONTROLS}reset", reset),
    web.post(f"{CONTROLS}snapshot", take_snapshot),
    web.get(f"{CONTROLS}snapshots", list_snapshots),
    web.delete(f"{CONTROLS}snapshot/{{id}}", delete_snapshot),
    web.post(f"{CONTROLS}restore", restore),
    web.get(f"{CONTROLS}clock", show_clock),
    web.post(f"{CONTROLS}clock", move_clock),
    web.post(f"{CONTROLS}settle", settle),
]
