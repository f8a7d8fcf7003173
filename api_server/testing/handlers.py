"""The controls below /-/testing: requests and answers, failures to order, state and time."""

import datetime
import math
from collections.abc import Callable, Iterable, Mapping

from aiohttp import web

from api_server.services import Key
from api_server.testing import CONTROLS, snapshots
from api_server.testing.clock import formatted
from api_server.testing.failures import FAILURES_TO_COME, ordered
from api_server.testing.journal import JOURNAL, Filter
from api_server.testing.snapshots import SNAPSHOTS, START, Snapshot
from api_server.testing.steering import check_pattern, refused, sent_object
from api_server.web import context
from api_server.web.answers import json_value, no_content

_FILTERS = ("method", "path", "status", "user")


def entry_filter(request: web.Request) -> Filter:
    """Return the filter in the query's `method`, `path`, `status` and `user`; without these it matches every
    entry. Raise 400."""
    query = request.query
    _check_names(query, _FILTERS)
    status = query.get("status")
    if status is not None and not (status.isascii() and status.isdigit() and len(status) == 3):
        raise refused("status has to be a number such as 404.")
    path = query.get("path")
    return Filter(
        method=query["method"].upper() if "method" in query else None,
        path=None if path is None else check_pattern("path", path),
        status=None if status is None else int(status),
        user=query.get("user"),
    )


def no_filter(request: web.Request) -> None:
    """Raise 400 if there is a query: a request about some entries must not apply to all."""
    _check_names(request.query, ())


def number_in_path(request: web.Request, name: str) -> int:
    """Return the number in the path. Raise 404 if it is not a number."""
    text = request.match_info[name]
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise refused(f"There is no failure {text[:50]!r}.", web.HTTPNotFound)
    return int(text)


def _check_names(query: Mapping[str, str], names: tuple[str, ...]) -> None:
    for name in query:
        if name not in names:
            hint = f"there are {', '.join(names)}" if names else "name one failure in the path instead"
            raise refused(f"There is no filter {name[:50]!r}; {hint}.")


async def list_requests(request: web.Request) -> web.Response:
    """List the requests, the oldest first; `X-Dropped` is the number of older ones that have been dropped."""
    journal = context.services(request)[JOURNAL]
    entities = [entry.shown() for entry in journal.matching(entry_filter(request))]
    return json_value(entities, headers={"X-Dropped": str(journal.dropped)})


async def forget_requests(request: web.Request) -> web.Response:
    context.services(request)[JOURNAL].forget(entry_filter(request))
    return no_content()


async def order_failure(request: web.Request) -> web.Response:
    failure = context.services(request)[FAILURES_TO_COME].order(ordered(await sent_object(request)))
    return json_value(failure.shown(), status=201)


async def list_failures(request: web.Request) -> web.Response:
    """List the failures, the oldest first, including those that are used up: their `left` is 0."""
    return json_value([failure.shown() for failure in context.services(request)[FAILURES_TO_COME].all()])


async def cancel_failures(request: web.Request) -> web.Response:
    no_filter(request)
    context.services(request)[FAILURES_TO_COME].clear()
    return no_content()


async def cancel_failure(request: web.Request) -> web.Response:
    context.services(request)[FAILURES_TO_COME].cancel(number_in_path(request, "failure_id"))
    return no_content()


#: Functions that reset other controls, called without arguments by a reset (but not by a restore).
ON_RESET = Key[Iterable[Callable[[], object]]]("on_reset")


async def reset(request: web.Request) -> web.Response:
    """Reset everything to the state of the start, including the clock, and answer 204."""
    services = context.services(request)
    await services[SNAPSHOTS].bring_back(START, also=services[ON_RESET])
    return no_content()


async def take_snapshot(request: web.Request) -> web.Response:
    """Take a snapshot and answer 201 `{"id", "time"}`; with `{"as": "start"}` later resets go back to it."""
    name = (await sent_object(request)).get("as") if request.body_exists else None
    if name not in (None, START):
        raise refused('"as" can be "start" only.')
    snapshot = await context.services(request)[SNAPSHOTS].take(as_start=name == START)
    return json_value(_entity(snapshot), status=201)


async def list_snapshots(request: web.Request) -> web.Response:
    """Answer 200 with `{"id", "time"}` of each snapshot, the oldest first."""
    return json_value([_entity(snapshot) for snapshot in context.services(request)[SNAPSHOTS].all])


async def delete_snapshot(request: web.Request) -> web.Response:
    """Delete a snapshot: 204, or 404."""
    await context.services(request)[SNAPSHOTS].delete(request.match_info["id"])
    return no_content()


async def restore(request: web.Request) -> web.Response:
    """Restore the snapshot `{"id"}`: 204, or 404."""
    snapshot_id = (await sent_object(request)).get("id")
    if not isinstance(snapshot_id, str):
        raise refused('Say which snapshot: {"id": "..."}.')
    await context.services(request)[SNAPSHOTS].bring_back(snapshot_id)
    return no_content()


async def show_clock(request: web.Request) -> web.Response:
    """Answer 200 with `{"now"}`."""
    return json_value({"now": formatted(context.services(request).now)})


async def move_clock(request: web.Request) -> web.Response:
    """Move the clock by `{"advance": seconds}` or to `{"now": moment}`, and answer 200 `{"now", "left"}` when
    the work that became due is done; `left` names unfinished work."""
    services = context.services(request)
    step = _move(await sent_object(request), services.now)
    pending = await snapshots.move_clock(services, step)
    return json_value({"now": formatted(services.now), "left": pending})


async def settle(request: web.Request) -> web.Response:
    """Answer 200 `{"left"}` when no work is due or running; `left` names unfinished work."""
    return json_value({"left": await context.services(request)[SNAPSHOTS].settle()})


def _move(order: dict[str, object], now: datetime.datetime) -> datetime.timedelta:
    match order:
        case {"advance": int() | float() as seconds} if len(order) == 1 and not isinstance(seconds, bool):
            if math.isfinite(seconds) and abs(seconds) <= snapshots.FURTHEST_AHEAD.total_seconds():
                return datetime.timedelta(seconds=seconds)
        case {"now": str(text)} if len(order) == 1 and (moment := _moment(text)) is not None:
            return moment - now
    raise refused('Send {"advance": seconds}, or {"now": "2027-01-01T00:00:00Z"}; at most 100 years ahead.')


def _moment(text: str) -> datetime.datetime | None:
    """Return the moment, or None for another text or one without an offset from UTC."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _entity(snapshot: Snapshot) -> dict[str, str]:
    return {"id": snapshot.id, "time": formatted(snapshot.taken_at)}


ROUTES = [
    web.get("/-/testing/requests", list_requests, allow_head=False),
    web.delete("/-/testing/requests", forget_requests),
    web.post("/-/testing/failures", order_failure),
    web.get("/-/testing/failures", list_failures, allow_head=False),
    web.delete("/-/testing/failures", cancel_failures),
    web.delete("/-/testing/failures/{failure_id}", cancel_failure),
    web.post(f"{CONTROLS}reset", reset),
    web.post(f"{CONTROLS}snapshot", take_snapshot),
    web.get(f"{CONTROLS}snapshots", list_snapshots),
    web.delete(f"{CONTROLS}snapshot/{{id}}", delete_snapshot),
    web.post(f"{CONTROLS}restore", restore),
    web.get(f"{CONTROLS}clock", show_clock),
    web.post(f"{CONTROLS}clock", move_clock),
    web.post(f"{CONTROLS}settle", settle),
]
