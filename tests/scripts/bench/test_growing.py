"""`scripts/bench/growth` in short, and what it reads out of PostgreSQL's plans."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from scripts.bench import growing
from scripts.bench.growing import Measured

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

#: What reads a table from end to end: how long it takes grows with everybody's jobs.
KNOWN: set[str] = set()


def test_whole_tables_and_pages_are_read_out_of_plans() -> None:
    first, second = growing.read_plans(LOG)
    assert (first.whole, first.pages) == (["jobs"], 42)
    assert (second.whole, second.pages) == ([], 0)


def test_the_table_tells_how_much_each_grew() -> None:
    small, large = (
        Measured(
            rows, {"jobs": 1.0}, {"0103_running_jobs": rows / 1e5}, [], {"jobs of a project": rows / 1e5}
        )
        for rows in (200_000, 2_000_000)
    )
    large.pages["jobs of a project"] = 77
    said = growing.growth_text([small, large])
    assert "x 10.0" in said
    assert "77" in said
    assert "0103_running_jobs" in said


def test_what_does_not_fit_on_the_disk_is_not_begun() -> None:
    done = CliRunner().invoke(growing.growth, ["--rows", "10000000000000"])
    assert done.exit_code == 1
    assert "GiB are free" in done.output


def test_lists_over_many_rows_read_no_whole_table(tmp_path: Path) -> None:
    kept = tmp_path / "growth.json"
    arguments = ["--rows", "20000", "--beside", "5000", "--projects", "100", "--json", str(kept)]
    done = CliRunner().invoke(growing.growth, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    small, large = json.loads(kept.read_text())["sizes"]
    assert (small["rows"], large["rows"]) == (5_000, 20_000)
    assert large["rewritten"] == []
    if large["not_told"]:
        pytest.skip(large["not_told"])
    assert set(large["whole"]) <= KNOWN, large["whole"]
