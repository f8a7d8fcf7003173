"""What may be said of the built-in runner on the command line."""

from collections.abc import Callable
from pathlib import Path

from .conftest import Up

StartTesting = Callable[..., Up]


def test_wrong_rules_are_told_before_anything_starts(start_testing: StartTesting, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text("- name: deploy\n  result: broken\n")
    up = start_testing(f"--runner={rules}")
    status, errors = up.outcome()
    assert (status, errors.count("\n")) == (2, 1)
    assert f"{rules}:2: result has to be success, failed or a reason to fail: " in errors
