"""What becomes of measured figures: shares, misses, comparisons, files, the page."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.bench import report, runs
from scripts.bench.rows import ALL_ROWS
from scripts.bench.runs import Outcome, Run, Side

from .conftest import Make

values = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=9)


def test_a_share_is_that_of_the_rounds_and_their_median(run_of: Make) -> None:
    [outcome] = run_of([50, 60, 90], [100, 100, 100]).outcomes
    assert outcome.shares(outcome.others[0]) == [0.5, 0.6, 0.9]
    assert outcome.share(outcome.others[0]) == 0.6
    assert outcome.missed == []


def test_where_less_is_better_a_share_is_turned_round(run_of: Make) -> None:
    [outcome] = run_of([2.0], [1.0], less_is_better=True, aim=0.9).outcomes
    assert outcome.share(outcome.others[0]) == 0.5
    assert outcome.missed == ["nginx"]


@pytest.mark.parametrize(
    ("ours", "theirs", "aim", "most", "missed"),
    [
        ([50], [100], 0.5, None, []),
        ([49], [100], 0.5, None, ["nginx"]),
        ([49], [100], None, None, []),
        ([49], [], 0.5, None, []),
        ([2.0], None, None, 2.0, []),
        ([2.1], None, None, 2.0, ["forgelet"]),
        ([], None, None, 2.0, []),
    ],
)
def test_an_aim_is_missed_by_what_was_measured_only(
    run_of: Make,
    ours: list[float],
    theirs: list[float] | None,
    aim: float | None,
    most: float | None,
    missed: list[str],
) -> None:
    [outcome] = run_of(ours, theirs, aim=aim, most=most).outcomes
    assert outcome.missed == missed


def test_a_line_tells_what_was_measured_and_what_was_not(run_of: Make) -> None:
    [measured] = run_of([40, 41, 42], [100, 100, 100]).outcomes
    assert report.row_text(measured) == (
        "hits: 41 requests/s (40 to 42)\n    nginx: share 0.41 (0.4 to 0.42), aim 0.5  MISSED"
    )
    [alone] = run_of([40], [], reason="nginx is not installed.").outcomes
    assert report.row_text(alone).endswith("nginx: not measured: nginx is not installed.")


# --- comparing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([80, 90, 100], [70, 75, 79], ["hits: share of nginx fell from 0.9 to 0.75 (17%)"]),
        ([80, 90, 100], [70, 75, 80], []),  # one round as good as the worst then
        ([100, 100, 100], [96, 96, 96], []),  # too little
        ([80, 90, 100], [200, 200, 200], []),
    ],
)
def test_slower_is_what_no_round_contradicts(
    run_of: Make, before: list[float], after: list[float], told: list[str]
) -> None:
    hundred = [100.0] * 3
    assert report.slower(run_of(before, hundred), run_of(after, hundred)) == told


def test_rows_without_peers_are_compared_by_their_own_figures(run_of: Make) -> None:
    slower = report.slower(
        run_of([1.0, 1.1], most=2, less_is_better=True), run_of([1.5, 1.6], most=2, less_is_better=True)
    )
    assert slower == ["hits: 1 / requests/s fell from 0.955 to 0.646 (32%)"]


def test_what_one_run_has_not_measured_is_named_and_not_compared(run_of: Make) -> None:
    new = run_of([1.0], [100.0])
    assert report.slower(run_of([]), new) == []
    assert report.not_compared(run_of([]), new) == ["hits"]
    assert report.not_compared(new, run_of([])) == []


@given(ours=values, theirs=values)
def test_no_run_is_slower_than_itself(ours: list[float], theirs: list[float]) -> None:
    rounds = min(len(ours), len(theirs))
    sides = Side("forgelet", ours[:rounds]), [Side("nginx", theirs[:rounds])]
    run = Run(
        "2026-01-02", {}, rounds, [Outcome("hits", "The edge", "hits", "a second", False, None, *sides)]
    )
    assert report.slower(run, run) == []


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_run_is_read_as_it_was_written(run_of: Make, tmp_path: Path) -> None:
    run = run_of([1.5, 2.5], [3.0, 4.0], most=7.0)
    runs.write_run(run, tmp_path / "run.json")
    assert runs.read_run(tmp_path / "run.json") == run


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"made": 1}'])
def test_other_files_are_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"was not written by --json\.$"):
        runs.read_run(path)


# --- the page -------------------------------------------------------------------------------------------------------


def test_a_missed_aim_is_shown_with_its_sentence_or_as_not_explained(run_of: Make) -> None:
    run = run_of([40.0], [100.0])
    explained = {"hits": {"nginx": "The log is half of it; it wants a thread of its own."}}
    assert "share of nginx: The log is half of it" in report.figures(run, explained, {})
    text = report.figures(run, {}, {"The edge": "performance/the-edge.svg"})
    assert "- `hits`, share of nginx: missed, and not explained." in text
    assert "| 0.4 (0.4 to 0.4) **missed** | 0.5 |" in text
    assert "(performance/the-edge.svg)" in text


def test_what_is_not_measured_is_on_the_page(run_of: Make) -> None:
    text = report.figures(run_of([40.0], [], reason="nginx is not installed."), {}, {})
    assert "| nginx | not measured: nginx is not installed. | 0.5 |" in text
    assert "No aim that was measured is missed." in text


def test_the_page_keeps_what_is_said_around_the_figures(run_of: Make, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `bench` is not installed")
    path = tmp_path / "performance.md"
    path.write_text(report.PAGE.read_text())
    for ours in (40.0, 70.0):  # the second time over the first
        report.write_page(run_of([ours], [100.0]), path)
    text = path.read_text()
    assert text.startswith("# Performance")
    assert text.count("| `hits` |") == 1
    assert "0.7 (0.7 to 0.7)" in text
    assert "<svg" in (tmp_path / "performance" / "the-edge.svg").read_text()


def test_explanations_are_of_rows_and_aims_that_there_are() -> None:
    for name, sentences in report.explanations().items():
        assert sentences.keys() <= {"forgelet", *ALL_ROWS[name][1].aims}
