"""The shell commands: what they install and when, and what they run, with a recorder as Python."""

import os
import subprocess

import pytest

from tests.support.checkout import CHECKOUT

from .copied import VERSION, Copy

COMMANDS = [
    "scripts/up",
    "scripts/test",
    "scripts/check",
    "scripts/conformance",
    "scripts/bench/run",
    "scripts/abuse/run",
    "scripts/clients/run",
    ".ci/run",
]
#: What scripts/up has pip install: the machine may have no PostgreSQL.
FOR_UP = ".[embedded,s3]"


@pytest.mark.parametrize("command", [*COMMANDS, "scripts/python.sh"])
def test_the_commands_are_plain_shell(command: str) -> None:
    assert subprocess.run(["/bin/sh", "-n", str(CHECKOUT / command)]).returncode == 0
    assert command.endswith(".sh") or os.access(CHECKOUT / command, os.X_OK)


def test_up_runs_from_any_folder_with_its_arguments_as_they_are(copy: Copy) -> None:
    assert copy.run("scripts/up", "--data-dir", "a b") == (0, copy_note(copy))
    *_, last = copy.ran()
    assert last == ["/", str(copy.path), "-P", "-m", "forgelet", "up", "--data-dir", "a b"]


def test_an_installation_is_made_once_until_what_it_depends_on_changes(copy: Copy) -> None:
    copy.run("scripts/up")
    assert copy.installed() == [FOR_UP]
    assert copy.run("scripts/up") == (0, "")
    assert copy.installed() == []
    with (copy.path / "constraints.txt").open("a") as constraints:
        constraints.write("one-more==1.0\n")
    copy.run("scripts/up")
    assert copy.installed() == [FOR_UP]


def test_the_tests_and_the_checks_bring_what_they_need_and_it_serves_the_others_too(copy: Copy) -> None:
    copy.run("scripts/up")
    copy.run("scripts/test")
    assert copy.installed() == [FOR_UP, ".[test]"]
    copy.run("scripts/check")
    copy.run("scripts/test")
    copy.run("scripts/up")
    assert copy.installed() == [".[dev]"]


def test_what_was_installed_before_stays_until_the_versions_change(copy: Copy) -> None:
    for command in ("scripts/check", "scripts/bench/run", "scripts/check", "scripts/bench/run"):
        copy.run(command)
    assert copy.installed() == [".[dev]", ".[bench]"]
    with (copy.path / "constraints.txt").open("a") as constraints:
        constraints.write("one-more==1.0\n")
    copy.run("scripts/bench/run")
    copy.run("scripts/check")
    assert copy.installed() == [".[bench]", ".[dev]"]


def test_what_looks_from_outside_is_made_once_beside_the_tests_and_named(copy: Copy) -> None:
    for _ in range(2):
        assert copy.run("scripts/fuzz/run")[0] == 0
    assert copy.installed() == [".", ".[openapi]"]


def test_an_installation_that_failed_is_tried_again(copy: Copy) -> None:
    status, errors = copy.run("scripts/up", FAILING="-m pip install")
    assert status == 1
    assert errors.endswith("The dependencies could not be installed; see above.\n")
    copy.run("scripts/up")
    assert copy.installed() == [FOR_UP, FOR_UP]


def test_test_hands_its_arguments_to_pytest_in_the_checkout(copy: Copy) -> None:
    copy.run("scripts/test", "tests/edge", "-k", "a or b")
    *_, last = copy.ran()
    assert last[0] == str(copy.path)
    assert last[2:] == ["-P", "-m", "pytest", "-n", "2", "--dist", "worksteal", "tests/edge", "-k", "a or b"]


def test_check_runs_every_check_and_names_those_that_failed(copy: Copy) -> None:
    copy.run("scripts/check")
    copy.ran()
    status, errors = copy.run("scripts/check", FAILING="ruff check")
    assert (status, errors) == (1, "Failed: ruff check\n")
    assert [" ".join(run[2:]) for run in copy.ran()] == [
        "-m ruff check .",
        "-m ruff format --check .",
        "-m mypy",
        "-m mkdocs build --quiet --strict",
        "",
    ]
    assert copy.run("scripts/check") == (0, "")


def test_without_a_new_enough_python_one_sentence_says_so(copy: Copy) -> None:
    copy.add_python("python3", "", script="#!/bin/sh\nexit 1\n")
    sentence = "Python 3.11 or newer was not found on PATH; install it and try again.\n"
    assert copy.run("scripts/up") == (1, sentence)


def test_another_python_is_used_where_it_is_named_and_each_keeps_what_was_installed(copy: Copy) -> None:
    copy.run("scripts/up")
    assert copy.installed() == [FOR_UP]
    other = copy.add_python("other pythons/python", "3.13.1")
    assert copy.run("scripts/up", FORGELET_PYTHON=str(other)) == (0, copy_note(copy, "3.13.1"))
    assert copy.installed() == [FOR_UP]
    for python in ("python3", str(other)):
        assert copy.run("scripts/up", FORGELET_PYTHON=python) == (0, "")
    assert copy.installed() == []


def test_a_named_python_that_will_not_do_is_refused_in_one_sentence(copy: Copy) -> None:
    old = copy.add_python("python3.10", "", script="#!/bin/sh\nexit 1\n")
    for python in ("python3.10", str(old), "no python"):
        sentence = f"FORGELET_PYTHON: {python} is no Python from 3.11 on.\n"
        assert copy.run("scripts/test", FORGELET_PYTHON=python) == (1, sentence)


@pytest.mark.parametrize("command", ["scripts/test", "scripts/check"])
def test_the_help_names_the_variables(copy: Copy, command: str) -> None:
    assert copy.run(command, "--help")[0] == 0
    assert copy.printed.startswith("Runs ")
    assert "FORGELET_PYTHON=" in copy.printed
    assert "set -u" not in copy.printed


def copy_note(copy: Copy, version: str = VERSION) -> str:
    return f"Installing into {copy.path}/.venv/{version} (about a minute the first time) ...\n"


def test_the_constraints_are_names_and_versions_and_nothing_else() -> None:
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    assert lines
    for line in lines:
        name, equals, version = line.partition("==")
        assert equals
        assert name.replace("-", "").replace("_", "").replace(".", "").isalnum()
        assert version.replace(".", "").isalnum()
