"""Costs of tests: reports about expensive tests, recorded figures, and the choice of tests by a record."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import costs
from tests.support.checkout import CHECKOUT

CHEAP, DEAR = "tests/test_a.py::test_cheap", "tests/test_a.py::test_dear"


def test_every_recorded_function_is_there() -> None:
    assert costs.stale(costs.recorded(costs.RECORD), CHECKOUT) == []


def test_nothing_else_makes_a_test_slow() -> None:
    mark = re.compile(r"mark\.slow\b")
    assert [path for path in (CHECKOUT / "tests").rglob("*.py") if mark.search(path.read_text())] == []


def test_a_function_that_has_gone_is_stale(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("async def test_cheap() -> None: ...\n")
    of_another_file = "tests/test_b.py::test_cheap"
    assert costs.stale({CHEAP: 1, DEAR: 1, of_another_file: 1}, tmp_path) == [DEAR, of_another_file]


@pytest.mark.parametrize(
    ("before", "measured", "after"),
    [
        (None, 0.256, 0.26),
        (None, 12.34, 12.0),
        (None, 0.09, None),
        (0.3, 0.09, None),
        (0.3, 0.22, 0.3),  # similar: the record stays as it is
        (0.3, 0.38, 0.3),
        (0.3, 0.45, 0.45),
        (0.3, None, 0.3),  # it did not run
    ],
)
def test_what_was_measured_is_recorded(
    before: float | None, measured: float | None, after: float | None
) -> None:
    def of(seconds: float | None) -> dict[str, float]:
        return {} if seconds is None else {CHEAP: seconds}

    assert costs.updated(of(before), of(measured)) == of(after)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    costs.write({DEAR: 12.0, CHEAP: 0.26}, tmp_path / "record")
    assert costs.recorded(tmp_path / "record") == {CHEAP: 0.26, DEAR: 12.0}
    assert (tmp_path / "record").read_text().splitlines()[-2:] == [f"0.26  {CHEAP}", f"12    {DEAR}"]


def test_a_run_in_which_a_fast_test_costs_more_than_two_core_seconds_names_it() -> None:
    assert costs.too_expensive({DEAR: 2.01, CHEAP: 2.0}, {}) == [
        f"Not recorded as slow (scripts/test --record), and above 2 core-seconds:\n  2.01 s {DEAR}"
    ]
    assert costs.too_expensive({DEAR: 9.0}, {DEAR: 0.25}) == []
    assert costs.too_expensive({DEAR: 9.0}, {DEAR: 0.24}) != []


def test_what_has_become_slow_is_named_by_the_speed_of_the_machine() -> None:
    measured = {DEAR: 0.6, CHEAP: 0.3}
    assert costs.become_slow(measured, {}, factor=1.0) == [
        f"Has become slow (scripts/test --record):\n  0.60 s {DEAR}"
    ]
    assert costs.become_slow(measured, {}, factor=2.0) == []
    assert costs.become_slow(measured, {DEAR: 0.4}, factor=1.0) == []


def test_the_ten_largest_growths_are_named() -> None:
    before = {f"tests/test_a.py::test_{number}": 1.0 for number in range(30)}
    measured = before | {f"tests/test_a.py::test_{number}": 2.0 + number for number in range(12)}
    (named,) = costs.grown(measured, before, factor=10.0)
    assert named.splitlines()[:2] == ["Grown most:", "  +12.00 s tests/test_a.py::test_11"]
    assert named.splitlines()[-1] == "  and 2 more"


def test_the_sum_is_named_where_it_has_grown_by_a_tenth() -> None:
    before = {CHEAP: 1.0, DEAR: 9.0}
    said = "What is recorded has grown from 10 to 12 s in all."
    assert said in costs.grown({CHEAP: 1.1, DEAR: 10.9}, before, factor=1.0)
    assert said not in costs.grown({CHEAP: 1.1, DEAR: 10.9}, before, factor=1.2)


def test_on_a_slower_machine_nothing_has_grown() -> None:
    before = {f"tests/test_a.py::test_{number}": 1.0 for number in range(9)}
    assert costs.grown(dict.fromkeys(before, 2.0), before, factor=2.0) == []


#: Tests that compute, that wait, that set up what others use, that read any text, and whose module's or session's
#: fixture computes.
TESTS = """
import time
import hypothesis
import pytest
from tests.support.costs import shared

def compute(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass

@pytest.fixture(scope="session")
def postgres():
    compute(0.3)

@pytest.fixture(scope="module")
def of_the_module():
    compute(0.3)

def test_computes():
    compute(0.3)

def test_begins():
    with shared():
        compute(0.3)

def test_waits():
    time.sleep(1.2)

@pytest.mark.parametrize("number", [1, 2])
def test_shares(number, of_the_module): ...

@hypothesis.settings(max_examples=1, deadline=None)
@hypothesis.given(hypothesis.strategies.text())
def test_reads(text): ...

def test_asks(postgres): ...

def test_asks_more(postgres): ...
"""
CONFTEST = """
import hypothesis
import pathlib
from tests.support import costs
from tests.support.costs import configure as pytest_configure, pytest_addoption, pytest_collection_modifyitems

costs.RECORD = pathlib.Path(__file__).with_name("record")
costs.MOST = 0.1
hypothesis.settings.register_profile("everyday", max_examples=25)
"""
#: Collects the tests of several command lines, and prints those that would run.
COLLECTING = """
import json, sys, pytest

class Chosen:
    def pytest_collection_finish(self, session):
        print(json.dumps([item.name for item in session.items]), file=sys.stderr)

plain, *lines = json.loads(sys.argv[1])
for arguments in lines:
    pytest.main([*plain, "--collect-only", *arguments], plugins=[Chosen()])
"""
PLAIN = ["-c", "/dev/null", "--rootdir", ".", "-p", "xdist", "-o", "testpaths=."]


def run(folder: Path, record: dict[str, float], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A function that runs Python in a folder with tests of its own and their records."""
    (folder / "test_a.py").write_text(TESTS)
    (folder / "conftest.py").write_text(CONFTEST)
    costs.write({f"test_a.py::test_{name}": seconds for name, seconds in record.items()}, folder / "record")
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )


def test_slow_tests_are_run_first_where_all_are_and_where_they_are_named(tmp_path: Path) -> None:
    fast, slow = (
        ["test_computes", "test_begins", "test_reads", "test_asks", "test_asks_more"],
        ["test_waits", "test_shares[1]", "test_shares[2]"],
    )
    expected = [
        ([], fast),
        (["--all"], slow + fast),
        (["-k", "waits or computes"], ["test_waits", "test_computes"]),
        (["test_a.py"], slow + fast),
        (["--all", "-m", "slow"], slow),
        (["test_a.py", "-m", "not slow"], fast),
        # With a database, only the most expensive one.
        (["--sample"], ["test_computes", "test_begins", "test_reads", "test_asks_more"]),
    ]
    lines = [PLAIN, *(arguments for arguments, _ in expected)]
    record = {"waits": 0.3, "shares": 0.25, "asks_more": 0.12}
    done = run(tmp_path, record, "-c", COLLECTING, json.dumps(lines))
    chosen = [json.loads(line) for line in done.stderr.splitlines()]
    assert chosen == [names for _, names in expected]


def test_a_run_records_what_its_tests_compute_and_wait_but_not_what_a_session_shares(tmp_path: Path) -> None:
    done = run(tmp_path, {"has_gone": 1.0}, "-m", "pytest", *PLAIN, "--record")
    assert done.returncode == 0, done.stdout
    record = costs.recorded(tmp_path / "record")
    assert list(record) == [f"test_a.py::test_{name}" for name in ("computes", "shares", "waits")]
    assert record["test_a.py::test_computes"] == pytest.approx(0.3, rel=0.3)
    assert record["test_a.py::test_waits"] == pytest.approx(0.3, rel=0.3)
    # Half of the costs of its module's fixture.
    assert record["test_a.py::test_shares"] == pytest.approx(0.15, rel=0.3)


def test_a_run_fails_that_has_a_fast_test_which_costs_too_much(tmp_path: Path) -> None:
    done = run(tmp_path, {"waits": 0.3}, "-m", "pytest", *PLAIN, "-n", "1")
    assert "7 passed" in done.stdout, done.stdout
    assert "above 0.1 core-seconds:\n  0." in done.stdout
    assert "s test_a.py::test_computes\n" in done.stdout
    assert done.returncode == 1
