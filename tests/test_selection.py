"""What a run does by its arguments: which tests, and with how many examples."""

import os
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "ci", "profile"),
    [([], {}, "everyday"), ([], {"CI": "true"}, "ci"), (["--all"], {}, "ci"), ([FILE], {}, "ci")],
)
def test_a_run_that_judges_a_change_takes_more_examples_and_always_the_same(
    arguments: list[str], ci: dict[str, str], profile: str
) -> None:
    command = [sys.executable, "-P", "-m", "pytest", "-vv", "--collect-only", "-o", f"testpaths={FILE}"]
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | ci
    ran = subprocess.run(
        [*command, *arguments], cwd=CHECKOUT, env=environment, capture_output=True, text=True
    )
    header = next(line for line in ran.stdout.splitlines() if line.startswith("hypothesis profile"))
    assert f"profile '{profile}'" in header
    assert ("derandomize=True" in header, "database=None" in header) == ((profile == "ci"),) * 2
