"""Slow tests are run where somebody asks for them."""

import subprocess
import sys

import pytest

from tests.support.checkout import CHECKOUT

FILE = "tests/storage_edge/test_crash.py"
SLOW = f"{FILE}::test_after_kill_9_every_byte_is_right_and_the_budget_holds"


@pytest.mark.parametrize(
    ("arguments", "is_run"), [([], False), (["--all"], True), (["-k", "kill_9"], True), ([FILE], True)]
)
def test_a_slow_test_is_run_where_all_are_and_where_it_is_named(arguments: list[str], is_run: bool) -> None:
    command = [sys.executable, "-P", "-m", "pytest", "--collect-only", "-o", f"testpaths={FILE}", *arguments]
    ran = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert (SLOW in ran.stdout) == is_run, ran.stdout + ran.stderr
    assert ran.returncode == 0
