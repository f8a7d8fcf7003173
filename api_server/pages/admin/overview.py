"""`/admin`: what fails, first; then how much there is of everything, now and over the last hours."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Literal

import attrs
from aiohttp import web
from markupsafe import Markup, escape

from api_server.operations.failing import failing
from api_server.operations.figures import FIGURES
from api_server.operations.samples import history
from api_server.pages import page
from api_server.pages.admin import charts
from api_server.pages.admin.charts import Chart, Point, Series
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.web import context
from api_server.web.routes import ADMINISTRATOR

pages = Pages()

#: Points of a line; of longer times every other one is drawn, and so on.
_MOST_POINTS = 180


@attrs.frozen
class Plan:
    """A chart to be: the names of its samples with what their lines are called, and what their values are times
    `factor`."""

    title: str
    lines: Mapping[str, str]
    unit: str = ""
    factor: float = 1.0


_PLANS = (
    Plan("Jobs by state", {"jobs_running": "running", "jobs_pending": "pending", "jobs_created": "created"}),
    Plan("Jobs that ended, by the minute", {"jobs_succeeded": "succeeded", "jobs_failed": "failed"}),
    Plan("Background tasks", {"queue_waiting": "waiting", "queue_failed": "failed for good"}),
    Plan("Wait of the oldest task that is due", {"queue_age_seconds": "wait"}, "s"),
    Plan(
        "Deliveries",
        {
            "deliveries_queued": "queued",
            "deliveries_failing": "failing receivers",
            "deliveries_due": "due",
            "deliveries_paused": "paused receivers",
        },
    ),
    Plan("Mirrors", {"mirrors_finished": "succeeded", "mirrors_failing": "failing"}),
    Plan("Answered by the edges from what they keep", {"edge_hit_ratio": "part of all requests"}, "%", 100),
    Plan("Bytes that edges saved, by the minute", {"edge_bytes_saved": "sent and not fetched"}, "B"),
    Plan("Sizes", {"store_bytes": "stored objects", "database_bytes": "database"}, "B"),
    Plan("Requests by the minute", {"requests": "all", "slow_requests": "longer than a second"}),
)


@attrs.frozen(kw_only=True)
class Overview:
    hours: Literal["1", "6", "24"] = "6"


@attrs.frozen
class Figure:
    """One number of the present moment, and the page that has more about it."""

    label: str
    value: str
    page: str | None = None


@pages.get("/admin", access=ADMINISTRATOR)
async def show(request: web.Request, who: Visitor, wanted: Overview) -> web.Response:
    database, now = context.database(request), context.now(request)
    since = now - datetime.timedelta(hours=int(wanted.hours))
    samples = await history(database, [name for plan in _PLANS for name in plan.lines], since)
    return page.answer(
        request,
        who,
        "admin/overview.html",
        failures=await failing(database, now),
        marked=_marked,
        figures=await _figures(request),
        charts=[_chart(plan, samples) for plan in _PLANS],
        drawing=charts.drawing,
        rows=charts.rows,
        lines=charts.LINES,
        hours=wanted.hours,
        now=now,
    )


async def _figures(request: web.Request) -> list[Figure]:
    try:
        found = await request.config_dict[FIGURES].get()
    except TimeoutError:  # the database takes long: what fails is worth more than how much there is
        return []
    mirrors = {one.status: one.count for one in found.mirrors}
    return [
        Figure("jobs running", f"{found.jobs.get('running', 0):,}"),
        Figure("jobs waiting for a runner", f"{found.jobs.get('pending', 0):,}"),
        Figure("runners heard of", f"{found.runners_alive:,}", "/admin/runners?status=online"),
        Figure(
            "tasks waiting",
            f"{sum(one.waiting for one in found.queue):,}",
            "/admin/background_tasks?status=todo",
        ),
        Figure("processes that do tasks", f"{found.workers_alive:,}"),
        Figure("deliveries waiting", f"{found.deliveries.queued:,}", "/admin/deliveries?state=queued"),
        Figure(
            "mirrors failing",
            f"{mirrors.get('failed', 0) + mirrors.get('to_retry', 0):,}",
            "/admin/mirrors?state=failing",
        ),
    ]


def _marked(text: str) -> Markup:
    """A sentence in which `this` is a name or a command."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # one of them stands for itself
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if number % 2 else escape(piece)
        for number, piece in enumerate(pieces)
    )


def _chart(plan: Plan, samples: Mapping[str, Sequence[Point]]) -> Chart:
    return Chart(
        plan.title,
        [Series(label, _drawn(samples[name], plan.factor)) for name, label in plan.lines.items()],
        plan.unit,
    )


def _drawn(points: Sequence[Point], factor: float) -> list[Point]:
    """Every so many of them, so that all is drawn in a bounded number; the newest is among them."""
    step = -(-len(points) // _MOST_POINTS) or 1
    chosen = points[(len(points) - 1) % step :: step]
    return [(moment, value * factor) for moment, value in chosen]
