"""`/admin`: first what fails, then figures about the instance, now and as small charts of the last hours."""

import datetime
import functools
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import attrs
from aiohttp import web
from markupsafe import Markup, escape

from api_server.operations.failing import failing
from api_server.operations.figures import FIGURES, history
from api_server.pages import page
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.web import context
from api_server.web.routes import ADMINISTRATOR

#: The size of a drawing in its own units. The page scales it to the available width.
WIDTH, HEIGHT = 320, 120
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 8, 20
#: Maximum number of rows in a chart's table: the newest figures, and earlier ones at equal distances.
MAX_ROWS = 12
#: Number of line styles, which differ in colour and dashes.
LINES = 6

Point = tuple[datetime.datetime, float]


@attrs.frozen
class Series:
    """A line of a chart: its label, and its points with the oldest first. Moments are in UTC."""

    label: str
    points: Sequence[Point]


@attrs.frozen
class Chart:
    """Lines that share their axes. `unit` is `B` for bytes, `s` for seconds, `%` for percent, another word that is
    written after the numbers, or "" for plain numbers."""

    title: str
    series: Sequence[Series]
    unit: str = ""

    @functools.cached_property
    def begin(self) -> datetime.datetime | None:
        """The moment of the oldest point, or None if there are no points."""
        return min((line.points[0][0] for line in self.series if line.points), default=None)

    @functools.cached_property
    def end(self) -> datetime.datetime | None:
        return max((line.points[-1][0] for line in self.series if line.points), default=None)

    @functools.cached_property
    def top(self) -> float:
        """The upper end of the axis of values: a round number that is not below any value."""
        if self.unit == "%":
            return 100.0
        highest = max((value for line in self.series for _, value in line.points), default=0.0)
        scale = 1024.0 ** int(math.log(highest, 1024)) if self.unit == "B" and highest >= 1 else 1.0
        return rounded_up(highest / scale) * scale


def rounded_up(value: float) -> float:
    """Return the next number that is 1, 2 or 5 times a power of ten, or 1 if `value` is not positive."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def amount(value: float, unit: str = "") -> str:
    """Return a value as people read it, such as `1.5 MiB`, `12 s`, `34 %` or `1,234`."""
    if unit == "B":
        for name in ("B", "KiB", "MiB", "GiB"):
            if abs(value) < 1024:
                return f"{_plain(value)} {name}"
            value /= 1024
        return f"{_plain(value)} TiB"
    if unit == "s" and 0 < value < 1:
        return f"{_plain(value * 1000)} ms"
    return f"{_plain(value)} {unit}".strip()


def _plain(value: float) -> str:
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.3g}"


def drawing(chart: Chart, name: str) -> Markup:
    """Return the chart as SVG with a title and a description. `name` makes its ids unique on the page."""
    parts = [
        Markup(
            '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-labelledby="{}-title {}-desc" focusable="false">'
        ).format(WIDTH, HEIGHT, name, name),
        Markup('<title id="{}-title">{}</title>').format(name, chart.title),
        Markup('<desc id="{}-desc">{}</desc>').format(name, described(chart)),
        *_axes(chart),
        *(_line(chart, line, number) for number, line in enumerate(chart.series)),
        Markup("</svg>"),
    ]
    return Markup("").join(parts)


def described(chart: Chart) -> str:
    """Return a sentence with the period of the chart, and with the last and the highest value of each line."""
    if chart.begin is None or chart.end is None:
        return "No data yet."
    totals = ", ".join(
        f"{line.label} {amount(line.points[-1][1], chart.unit)}"
        f" (maximum {amount(max(value for _, value in line.points), chart.unit)})"
        for line in chart.series
        if line.points
    )
    return f"From {_clock(chart.begin)} to {_clock(chart.end)} UTC. Latest values: {totals}."


def rows(chart: Chart) -> list[tuple[str, list[str]]]:
    """Return the rows of the chart's table, the newest first: a moment, and the value of each line at that moment, or a
    dash if it has none."""
    moments = sorted({moment for line in chart.series for moment, _ in line.points}, reverse=True)
    step = max(1, math.ceil(len(moments) / MAX_ROWS))
    values = [dict(line.points) for line in chart.series]
    return [
        (
            _clock(moment),
            [amount(points[moment], chart.unit) if moment in points else "–" for points in values],
        )
        for moment in moments[::step]
    ]


def _clock(moment: datetime.datetime) -> str:
    return moment.strftime("%H:%M")


def _axes(chart: Chart) -> list[Markup]:
    lowest, middle = HEIGHT - _BOTTOM, (HEIGHT - _BOTTOM + _TOP) / 2
    grid = [
        Markup('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(_LEFT, WIDTH - _RIGHT, y, y)
        for y in (_TOP, middle, lowest)
    ]
    texts = [
        _text(_LEFT - 4, _TOP + 4, "end", amount(chart.top, chart.unit)),
        _text(_LEFT - 4, lowest, "end", "0"),
    ]
    if chart.begin is not None and chart.end is not None:
        texts += [
            _text(_LEFT, HEIGHT - 6, "start", _clock(chart.begin)),
            _text(WIDTH - _RIGHT, HEIGHT - 6, "end", _clock(chart.end)),
        ]
    return [*grid, *texts]


def _text(x: float, y: float, anchor: str, text: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}" aria-hidden="true">{}</text>').format(
        x, y, anchor, text
    )


def _line(chart: Chart, line: Series, number: int) -> Markup:
    """Return a line. It is interrupted where figures are missing, because none were taken while the service was
    down."""
    if not line.points or chart.begin is None or chart.end is None:
        return Markup("")
    moments = [moment.timestamp() for moment, _ in line.points]
    gap = _usual_distance(moments) * 3
    begin, lowest, top = chart.begin.timestamp(), HEIGHT - _BOTTOM, chart.top
    across = (WIDTH - _LEFT - _RIGHT) / (chart.end.timestamp() - begin or 1.0)
    up = (lowest - _TOP) / top
    commands, last = [], -math.inf
    for moment, (_, value) in zip(moments, line.points, strict=True):
        x, y = _LEFT + (moment - begin) * across, lowest - min(max(value, 0.0), top) * up
        # A lone point is a line of length zero, which is visible as a dot because lines have round ends.
        commands.append(f"L{x:.1f} {y:.1f}" if moment - last <= gap else f"M{x:.1f} {y:.1f}l0 0")
        last = moment
    return Markup('<path class="line line-{}" d="{}"/>').format(number % LINES, "".join(commands))


def _usual_distance(moments: Sequence[float]) -> float:
    """Return the median of the seconds between neighbouring moments."""
    distances = sorted(after - before for before, after in pairwise(moments))
    return distances[len(distances) // 2] if distances else 0.0


pages = Pages()

#: Maximum number of points of a line. For longer periods only every second or third (and so on) point is drawn.
_MAX_POINTS = 180


@attrs.frozen
class Plan:
    """The definition of a chart. `lines` has the labels of its lines by the names of their samples, whose values are
    multiplied by `factor`."""

    title: str
    lines: Mapping[str, str]
    unit: str = ""
    factor: float = 1.0


_PLANS = (
    Plan("Jobs by status", {"jobs_running": "running", "jobs_pending": "pending", "jobs_created": "created"}),
    Plan("Finished jobs per minute", {"jobs_succeeded": "succeeded", "jobs_failed": "failed"}),
    Plan("Background tasks", {"queue_waiting": "waiting", "queue_failed": "failed"}),
    Plan("Waiting time of the oldest due task", {"queue_age_seconds": "waiting time"}, "s"),
    Plan(
        "Deliveries",
        {
            "deliveries_queued": "queued",
            "deliveries_failing": "failing status checks",
            "deliveries_due": "due",
            "deliveries_paused": "paused status checks",
        },
    ),
    Plan("Mirrors", {"mirrors_finished": "succeeded", "mirrors_failing": "failing"}),
    Plan("Edge cache hit ratio", {"edge_hit_ratio": "hits of all requests"}, "%", 100),
    Plan("Bytes saved by edges per minute", {"edge_bytes_saved": "served from cache"}, "B"),
    Plan("Storage", {"store_bytes": "stored objects", "database_bytes": "database"}, "B"),
    Plan("Requests per minute", {"requests": "all", "slow_requests": "slower than 1 s"}),
)


@attrs.frozen(kw_only=True)
class Overview:
    hours: Literal["1", "6", "24"] = "6"


@attrs.frozen
class Figure:
    """A number about the present, and the page that has more about it."""

    label: str
    value: str
    page: str | None = None


@pages.get("/admin", access=ADMINISTRATOR)
async def show(request: web.Request, visitor: Visitor, params: Overview) -> web.Response:
    services = context.services(request)
    database, now = services.database, services.now
    since = now - datetime.timedelta(hours=int(params.hours))
    samples = await history(database, [name for plan in _PLANS for name in plan.lines], since)
    return page.answer(
        request,
        visitor,
        "admin/overview.html",
        failures=await failing(database, now),
        marked=_marked,
        figures=await _figures(request),
        charts=[_chart(plan, samples) for plan in _PLANS],
        drawing=drawing,
        rows=rows,
        lines=LINES,
        hours=params.hours,
        now=now,
    )


async def _figures(request: web.Request) -> list[Figure]:
    try:
        figures = await context.services(request)[FIGURES].get()
    except TimeoutError:  # the database is slow: the page still has to show what fails
        return []
    mirrors = {row.status: row.count for row in figures.mirrors}
    return [
        Figure("running jobs", f"{figures.jobs.get('running', 0):,}"),
        Figure("pending jobs", f"{figures.jobs.get('pending', 0):,}"),
        Figure("online runners", f"{figures.runners_alive:,}", "/admin/runners?status=online"),
        Figure(
            "waiting tasks",
            f"{sum(row.waiting for row in figures.queue):,}",
            "/admin/background_tasks?status=todo",
        ),
        Figure("task workers", f"{figures.workers_alive:,}"),
        Figure("queued deliveries", f"{figures.deliveries.queued:,}", "/admin/deliveries?state=queued"),
        Figure(
            "failing mirrors",
            f"{mirrors.get('failed', 0) + mirrors.get('to_retry', 0):,}",
            "/admin/mirrors?state=failing",
        ),
    ]


def _marked(text: str) -> Markup:
    """Return a sentence as HTML, with the parts between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without a partner stands for itself
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )


def _chart(plan: Plan, samples: Mapping[str, Sequence[Point]]) -> Chart:
    return Chart(
        plan.title,
        [Series(label, _sampled(samples[name], plan.factor)) for name, label in plan.lines.items()],
        plan.unit,
    )


def _sampled(points: Sequence[Point], factor: float) -> list[Point]:
    """Return at most `_MAX_POINTS` of the points at equal distances, with the newest among them, times `factor`."""
    step = -(-len(points) // _MAX_POINTS) or 1
    chosen = points[(len(points) - 1) % step :: step]
    return [(moment, value * factor) for moment, value in chosen]
