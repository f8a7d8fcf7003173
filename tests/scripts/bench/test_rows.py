"""The rows of `scripts/bench/run`, and each of them in short."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bench import __main__, runs
from scripts.bench.rows import ALL_ROWS, GROUPS
from scripts.bench.runs import TINY, Bench, NotMeasured, Row, Sample
from scripts.bench.service import prepared_script
from tests.support.checkout import CHECKOUT

LOG = """LOG:  statement: PREPARE one AS SELECT 1 AS last_id
LOG:  statement: PREPARE other AS SELECT 2
LOG:  statement: SET LOCAL plan_cache_mode = force_generic_plan; EXECUTE one
LOG:  statement: EXECUTE other
"""


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-P", "-m", "scripts.bench", *arguments]
    return subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True)


def test_every_list_and_read_of_the_contract_is_a_row() -> None:
    """Endpoints that read, by their numbers in docs/service-api.md."""
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
    row = Row("row", "a row", lambda _: sides, aims={"other": 0.5, "third": 1.0}, warmed_up=False)  # type: ignore[arg-type, return-value]
    with Bench() as running:
        outcome = runs.measure_row(row, "Group", running)
    assert order == ["ours", "other", "other", "ours", "ours", "other"]
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
    script = prepared_script(LOG)
    assert "PREPARE one AS SELECT 1 AS last_id;" in script
    assert "force_generic_plan\\; EXECUTE one;" in script


def test_the_list_of_rows_says_aims_and_an_unknown_name_is_refused() -> None:
    listed = bench("--list", "jobs-keyset", "resets")
    assert listed.returncode == 0, listed.stderr
    assert "jobs-keyset: endpoint 1: GET /projects/:id/jobs?pagination=keyset" in listed.stdout
    assert "aim: 8 of FastAPI, 0.6 of pgbench" in listed.stdout
    assert len(listed.stdout.splitlines()) == 3
    refused = bench("no-such-row")
    assert refused.returncode == 1
    assert "There is no row no-such-row" in refused.stderr


def test_names_of_groups_stand_for_their_rows() -> None:
    assert __main__._chosen(("resets", "user")) == ["user", "reset", "reset-worn"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", [name for name in GROUPS if name != "single_reads"])
def test_each_row_can_be_measured_in_short(group: str, tmp_path: Path) -> None:
    """Lists and single resources together, since they read the same database."""
    kept = tmp_path / "run.json"
    groups = [group, "single_reads"] if group == "lists" else [group]
    done = bench("--tiny", "--json", str(kept), *groups)
    assert done.returncode == 0, done.stderr
    run = runs.read_run(kept)
    titles = {GROUPS[name][0] for name in groups}
    assert [row.name for row in run.outcomes] == [
        name for name, (title, _) in ALL_ROWS.items() if title in titles
    ]
    reasons = {side.reason for row in run.outcomes for side in (row.ours, *row.others) if not side.values}
    assert all(re.search(r"installed|belong", reason) for reason in reasons), done.stdout
    if any(not row.ours.values for row in run.outcomes):
        pytest.skip("; ".join(sorted(reasons)))
