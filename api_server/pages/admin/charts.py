"""Figures over time as small drawings (SVG), each with the same figures as a table for whoever cannot see it."""

import datetime
import math
from collections.abc import Sequence
from itertools import pairwise

import attrs
from markupsafe import Markup

#: Of the drawing, in its own units; it is scaled to the width that the page has for it.
WIDTH, HEIGHT = 320, 120
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 8, 20
#: Rows of the table: the newest figures, and as many before them at equal distances.
MOST_ROWS = 12
#: Kinds of lines that the style tells apart, by colour and by dashes.
LINES = 6

Point = tuple[datetime.datetime, float]


@attrs.frozen
class Series:
    """One line: what it is called, and its points, oldest first. Moments are in UTC."""

    label: str
    points: Sequence[Point]


@attrs.frozen
class Chart:
    """Lines that share their axes. `unit` is what is counted: a word after the number, `B` for bytes, `s` for seconds,
    `%` for shares of one hundred, or nothing."""

    title: str
    series: Sequence[Series]
    unit: str = ""

    @property
    def begin(self) -> datetime.datetime | None:
        """The moment of the oldest point, None without any."""
        return min((line.points[0][0] for line in self.series if line.points), default=None)

    @property
    def end(self) -> datetime.datetime | None:
        return max((line.points[-1][0] for line in self.series if line.points), default=None)

    @property
    def top(self) -> float:
        """Where the axis of values ends: a round number that is not below any value."""
        if self.unit == "%":
            return 100.0
        return rounded_up(max((value for line in self.series for _, value in line.points), default=0.0))


def rounded_up(value: float) -> float:
    """The next number of the form 1, 2 or 5 times a power of ten; 1 for what is not above 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def amount(value: float, unit: str = "") -> str:
    """As people read it: `1.5 MiB`, `12 s`, `34 %`, `1,234`."""
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
    """The SVG with its title and description; `name` makes ids that no other drawing of the page has."""
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
    """One sentence: between which moments, and what each line is at its end and at most."""
    if chart.begin is None or chart.end is None:
        return "No figures yet."
    told = ", ".join(
        f"{line.label} {amount(line.points[-1][1], chart.unit)}"
        f" (at most {amount(max(value for _, value in line.points), chart.unit)})"
        for line in chart.series
        if line.points
    )
    return f"From {_clock(chart.begin)} to {_clock(chart.end)} UTC, at the end: {told}."


def rows(chart: Chart) -> list[tuple[str, list[str]]]:
    """The table, newest first: a moment, and the value of each line then (a dash where it has none)."""
    moments = sorted({moment for line in chart.series for moment, _ in line.points}, reverse=True)
    step = max(1, math.ceil(len(moments) / MOST_ROWS))
    values = [dict(line.points) for line in chart.series]
    return [
        (_clock(moment), [amount(one[moment], chart.unit) if moment in one else "–" for one in values])
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
    """Broken where figures are missing: nobody drew them while the service was down."""
    if not line.points:
        return Markup("")
    gap = _usual_distance(line.points) * 3
    commands = []
    for before, (moment, value) in zip([None, *line.points], line.points, strict=False):
        begins = before is None or (moment - before[0]).total_seconds() > gap
        x, y = _place(chart, moment, value)
        # A lone point is a line of no length, which round ends make a dot.
        commands.append(f"M{x:.1f} {y:.1f}l0 0" if begins else f"L{x:.1f} {y:.1f}")
    return Markup('<path class="line line-{}" d="{}"/>').format(number % LINES, "".join(commands))


def _usual_distance(points: Sequence[Point]) -> float:
    """Seconds between two neighbours: the one in the middle."""
    distances = sorted((after - before).total_seconds() for (before, _), (after, _) in pairwise(points))
    return distances[len(distances) // 2] if distances else 0.0


def _place(chart: Chart, moment: datetime.datetime, value: float) -> tuple[float, float]:
    begin, end = chart.begin or moment, chart.end or moment
    span = (end - begin).total_seconds() or 1.0
    x = _LEFT + (moment - begin).total_seconds() / span * (WIDTH - _LEFT - _RIGHT)
    y = HEIGHT - _BOTTOM - min(max(value, 0.0), chart.top) / chart.top * (HEIGHT - _BOTTOM - _TOP)
    return x, y
