"""The bench in short: its rows, the use of measured figures, and that it ends what it starts."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from scripts.bench import __main__, growing, measuring, report, runs
from scripts.bench.growing import Measured
from scripts.bench.rows import ALL_ROWS, GROUPS
from scripts.bench.rows.git import AT_ONCE, fcgiwrap
from scripts.bench.runs import TINY, Bench, NotMeasured, Outcome, Row, Run, Sample, Side
from scripts.bench.service import prepared_script
from tests.support.checkout import CHECKOUT

Make = Callable[..., Run]


@pytest.fixture
def run_of() -> Make:
    """Return a run of one row, `hits`, with our values and those of nginx."""

    def make(
        ours: list[float],
        theirs: list[float] | None = None,
        *,
        aim: float | None = 0.5,
        most: float | None = None,
        less_is_better: bool = False,
        reason: str = "",
    ) -> Run:
        others = [] if theirs is None else [Side("nginx", theirs, [], aim, reason)]
        outcome = Outcome(
            "hits",
            "The edge",
            "hits of 4 KiB",
            "requests/s",
            less_is_better,
            most,
            Side("forgelet", ours),
            others,
        )
        return Run("2026-01-02", {"processor": "2 x a processor"}, 3, [outcome])

    return make


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
        "hits: 41 requests/s (40 to 42)\n    nginx: share 0.41 (0.4 to 0.42)  MISSED, aim 0.5"
    )
    [alone] = run_of([40], [], reason="nginx is not installed.").outcomes
    assert report.row_text(alone).endswith("nginx: not measured: nginx is not installed.")


# --- comparing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([80, 90, 100], [70, 75, 79], ["hits: share of nginx fell from 0.9 to 0.75 (17%)"]),
        ([80, 90, 100], [70, 75, 80], []),  # one round as good as the worst one before
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


def _behind(socket: Path) -> int:
    """Return the number of processes whose command contains the text."""
    count = 0
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            count += f"unix:{socket}".encode() in command.read_bytes()
    return count


@pytest.mark.skipif(shutil.which("fcgiwrap") is None, reason="fcgiwrap is not installed")
def test_fcgiwrap_ends_with_the_processes_that_it_has_made(tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    with fcgiwrap(socket):
        _wait_for(AT_ONCE + 1, socket)
    _wait_for(0, socket)


def _wait_for(count: int, socket: Path) -> None:
    deadline = time.monotonic() + 20
    while (found := _behind(socket)) != count:
        assert time.monotonic() < deadline, f"{found} and not {count}"
        time.sleep(0.01)


def test_a_program_that_misses_the_signal_to_end_gets_another_one() -> None:
    deaf_once = "trap 'trap \"echo ended; exit 0\" INT' INT; while :; do sleep 0.05; done"
    assert measuring._run_for(["sh", "-c", deaf_once], 0.5) == "ended\n"


def test_a_program_that_is_interrupted_too_early_is_run_for_longer() -> None:
    slow_to_begin = "sleep 0.3; trap 'echo ended; exit 0' INT; while :; do sleep 0.05; done"
    assert measuring._run_for(["sh", "-c", slow_to_begin], 0.2) == "ended\n"


LOG = """LOG:  duration: 0.1 ms  plan:
\tQuery Text: SELECT
\tNested Loop  (cost=0.00..1.00 rows=1 width=1) (actual rows=1 loops=1)
\t  Buffers: shared hit=30 read=12
\t  ->  Seq Scan on jobs  (cost=0.00..1.00 rows=1 width=1) (actual rows=3 loops=1)
\t        Filter: (project_id = 1)
\t        Rows Removed by Filter: 20000
\t        Buffers: shared hit=25 read=12
\t  ->  Seq Scan on audit_events_2025_10  (cost=0.00..1.00 rows=1 width=1) (actual rows=3 loops=1)
\t        Buffers: shared hit=5
LOG:  duration: 0.1 ms  plan:
\tQuery Text: SELECT 1
\tResult  (cost=0.00..0.01 rows=1 width=4) (actual rows=1 loops=1)
"""

#: Statements that read a whole table: their time grows with everybody's jobs.
KNOWN: set[str] = set()


def test_whole_tables_and_pages_are_read_out_of_plans() -> None:
    first, second = growing.read_plans(LOG)
    assert (first.whole, first.pages) == (["jobs"], 42)
    assert (second.whole, second.pages) == ([], 0)


def test_the_table_tells_how_much_each_grew() -> None:
    small, large = (
        Measured(rows, {"jobs": 1.0}, {"jobs of a project": rows / 1e5}) for rows in (200_000, 2_000_000)
    )
    large.pages["jobs of a project"] = 77
    said = growing.growth_text([small, large])
    assert "x 10.0" in said
    assert "77" in said


def test_what_does_not_fit_on_the_disk_is_not_begun() -> None:
    done = CliRunner().invoke(growing.growth, ["--rows", "10000000000000"])
    assert done.exit_code == 1
    assert "GiB are free" in done.output


def growth_of(rows: int, beside: int, kept: Path) -> Any:
    arguments = ["--rows", f"{rows}", "--beside", f"{beside}", "--projects", "100", "--json", str(kept)]
    done = CliRunner().invoke(growing.growth, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(kept.read_text())["sizes"]


def test_lists_over_many_rows_read_no_whole_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WARM_LISTS", "TIMES", "HANDED_OUT"):
        monkeypatch.setattr(growing, name, 1)  # the plans are checked, not the times
    [large] = growth_of(20_000, 20_000, tmp_path / "growth.json")
    assert large["rows"] == 20_000
    if large["why_no_plans"]:
        pytest.skip(large["why_no_plans"])
    assert set(large["whole"]) <= KNOWN, large["whole"]


def test_the_smaller_number_of_rows_is_measured_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(growing, "measure_growth", lambda rows, *_, **__: Measured(rows, {}))
    small, large = growth_of(20_000, 5_000, tmp_path / "growth.json")
    assert (small["rows"], large["rows"]) == (5_000, 20_000)


ROWS_LOG = """LOG:  statement: PREPARE one AS SELECT 1 AS last_id
LOG:  statement: PREPARE other AS SELECT 2
LOG:  statement: SET LOCAL plan_cache_mode = force_generic_plan; EXECUTE one
LOG:  statement: EXECUTE other
"""


def test_every_list_and_read_of_the_contract_is_a_row() -> None:
    """Reading endpoints, by their numbers in docs/service-api.md."""
    text = (CHECKOUT / "docs" / "service-api.md").read_text()
    reads = {int(number) for number in re.findall(r"^\| (\d+) \| GET `", text, re.MULTILINE)} | {32}
    told = " ".join(row.what for _, row in ALL_ROWS.values())
    assert {int(number) for number in re.findall(r"endpoint (\d+)", told)} == reads


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for _, rows in GROUPS.values() for row in rows]
    assert len(names) == len(set(names)) == len(ALL_ROWS)
    assert not set(names) & set(GROUPS)


def test_sides_are_measured_by_turns_and_a_missing_one_is_told() -> None:
    order: list[str] = []

    def side(name: str, value: float) -> object:
        return lambda _: order.append(name) or Sample(value)

    sides = {
        "forgelet": side("ours", 2.0),
        "other": side("other", 4.0),
        "third": NotMeasured("it is not here."),
    }
    row = Row("row", "a row", lambda _: sides, aims={"other": 0.5, "third": 1.0})  # type: ignore[arg-type, return-value]
    with Bench() as running:
        outcome = runs.measure_row(row, "Group", running)
    # The first two are the warm-up.
    assert " ".join(order) == "ours other ours other other ours ours other"
    assert outcome.missed == []
    assert outcome.others[1].reason == "it is not here."


def test_a_row_that_cannot_be_set_up_is_told_with_its_reason() -> None:
    def sides(_: Bench) -> dict[str, object]:
        raise NotMeasured("nginx is not installed.")

    with Bench(TINY) as running:
        outcome = runs.measure_row(Row("row", "a row", sides, aims={"nginx": 1.0}), "Group", running)  # type: ignore[arg-type]
    assert [outcome.ours.reason, outcome.others[0].reason] == ["nginx is not installed."] * 2


def test_a_row_that_fails_does_not_take_the_others_with_it() -> None:
    def broken(_: float) -> Sample:
        raise RuntimeError("Not every answer was a success: 500\nand more")

    with Bench(TINY) as running:
        row = Row("row", "a row", lambda _: {"forgelet": broken}, aims={"nginx": 1.0})
        outcome = runs.measure_row(row, "Group", running)
    assert outcome.ours.reason == "it failed: Not every answer was a success: 500"
    assert outcome.missed == []


def test_a_lists_statement_is_found_in_the_log_and_made_a_script() -> None:
    script = prepared_script(ROWS_LOG)
    assert "PREPARE one AS SELECT 1 AS last_id;" in script
    assert "force_generic_plan\\; EXECUTE one;" in script


def test_the_list_of_rows_says_aims_and_an_unknown_name_is_refused() -> None:
    listed = CliRunner().invoke(__main__.bench, ["--list", "jobs-keyset", "resets"])
    assert listed.exit_code == 0, listed.output
    assert "jobs-keyset: endpoint 1: GET /projects/:id/jobs?pagination=keyset" in listed.output
    assert "aim: 8 of FastAPI, 0.6 of pgbench" in listed.output
    assert len(listed.output.splitlines()) == 3
    refused = CliRunner().invoke(__main__.bench, ["no-such-row"])
    assert refused.exit_code == 1
    assert "There is no row no-such-row" in refused.output


def test_names_of_groups_stand_for_their_rows() -> None:
    assert __main__._chosen(("resets", "user")) == ["user", "reset", "reset-worn"]


@pytest.mark.timeout(600)
def test_each_row_can_be_measured_in_short(tmp_path: Path) -> None:
    """The rows are measured in one run, because they share servers and data, whose start costs more than the rows."""
    kept = tmp_path / "run.json"
    command = [sys.executable, "-P", "-m", "scripts.bench", "--tiny", "--json", str(kept)]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = runs.read_run(kept)
    assert [row.name for row in run.outcomes] == list(ALL_ROWS)
    reasons = {side.reason for row in run.outcomes for side in (row.ours, *row.others) if not side.values}
    assert all(re.search(r"installed|belong", reason) for reason in reasons), done.stdout
    if any(not row.ours.values for row in run.outcomes):
        pytest.skip("; ".join(sorted(reasons)))
