"""The number of hypothesis examples, by the arguments of a run."""

import os
import subprocess
import sys

import pytest

from tests.support.checkout import CHECKOUT

FILE = "tests/test_linear_parsers.py"


@pytest.mark.parametrize(
    ("arguments", "ci", "profile"),
    [
        ([], {}, "everyday"),
        ([], {"CI": "true"}, "ci"),
        (["--all"], {}, "ci"),
        (["--sample"], {}, "sample"),
        ([FILE], {}, "ci"),
    ],
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
    assert ("derandomize=True" in header, "database=None" in header) == (profile != "everyday",) * 2
