"""Figures as drawings: what they say to those who see them, and to those who do not."""

import datetime
import re
from xml.etree import ElementTree

import pytest

from api_server.pages.admin.overview import Chart, Series, amount, described, drawing, rounded_up, rows

NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
SVG = "{http://www.w3.org/2000/svg}"


def _series(label: str, *values: float, minutes: int = 1) -> Series:
    step = datetime.timedelta(minutes=minutes)
    return Series(label, [(NOON + number * step, value) for number, value in enumerate(values)])


def _drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(drawing(chart, "it"))


def _paths(chart: Chart) -> list[str]:
    return [each.attrib["d"] for each in _drawn(chart).iter("path")]


def test_a_drawing_has_a_role_a_title_and_a_description() -> None:
    drawn = _drawn(Chart("Jobs", [_series("running", 1, 4, 2)]))
    assert drawn.attrib["role"] == "img"
    names = drawn.attrib["aria-labelledby"].split()
    told = {each.attrib["id"]: each.text for each in drawn if "id" in each.attrib}
    assert [told[name] for name in names] == [
        "Jobs",
        "From 12:00 to 12:02 UTC, at the end: running 2 (at most 4).",
    ]


def test_lines_are_told_apart() -> None:
    chart = Chart("Jobs", [_series("running", 1), _series("pending", 2)])
    assert [each.attrib["class"] for each in _drawn(chart).iter("path")] == ["line line-0", "line line-1"]


def test_a_point_stands_where_its_moment_and_its_value_are() -> None:
    (path,) = _paths(Chart("Share", [_series("hits", 0, 50, 100)], unit="%"))
    places = [tuple(map(float, place)) for place in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]
    assert places == [(44.0, 100.0), (178.0, 54.0), (312.0, 8.0)]


def test_a_gap_is_not_drawn_over() -> None:
    points = [(NOON + datetime.timedelta(minutes=at), 1.0) for at in (0, 1, 2, 30, 31)]
    (path,) = _paths(Chart("Jobs", [Series("running", points)]))
    assert (path.count("M"), path.count("L")) == (2, 3)


def test_what_users_named_is_text() -> None:
    chart = Chart("<b>", [_series('"><script>', 1)])
    assert "<b>" not in drawing(chart, "it")
    assert "<script>" not in drawing(chart, "it")


@pytest.mark.parametrize("series", [[], [Series("running", [])]])
def test_without_figures_it_says_so(series: list[Series]) -> None:
    chart = Chart("Jobs", series)
    assert described(chart) == "No figures yet."
    assert (rows(chart), _paths(chart)) == ([], [])


def test_the_table_has_the_newest_figures_first_and_not_too_many() -> None:
    chart = Chart("Jobs", [_series("running", *range(100)), _series("pending", *range(50))])
    table = rows(chart)
    assert len(table) <= 12
    assert table[0] == ("13:39", ["99", "–"])
    assert table[-1][1][0] == table[-1][1][1]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "", "0"),
        (1234, "", "1,234"),
        (1536, "B", "1.5 KiB"),
        (5 * 2**40, "B", "5 TiB"),
        (0.25, "s", "250 ms"),
        (12, "s", "12 s"),
        (33.333, "%", "33.3 %"),
    ],
)
def test_amounts_are_read_by_people(value: float, unit: str, text: str) -> None:
    assert amount(value, unit) == text


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (1, 1), (3, 5), (5, 5), (51, 100), (0.03, 0.05), (1000, 1000)]
)
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    assert rounded_up(value) == pytest.approx(top)
