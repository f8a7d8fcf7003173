"""The shell commands: what they install and when, and what they run, with a recorder as Python."""

import fcntl
import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.scripts.copied import RECORDER, VERSION, Copy
from tests.support.checkout import CHECKOUT

COMMANDS = [
    "scripts/up", "scripts/forgelet", "scripts/test", "scripts/check", "scripts/conformance", "scripts/bench/run",
    "scripts/bench/growth", "scripts/abuse/run", "scripts/clients/run", "scripts/faults/run", "scripts/fuzz/run",
    "scripts/restores/run", ".ci/run",
]  # fmt: skip
#: What scripts/up installs with pip: the machine may have no PostgreSQL.
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


def test_what_has_changed_is_told_apart_from_a_first_installation(copy: Copy) -> None:
    copy.run("scripts/up")
    with (copy.path / "constraints.txt").open("a") as constraints:
        constraints.write("one-more==1.0\n")
    said = f"Installing what has changed into {copy.path}/.venv/{VERSION}; this takes up to a minute.\n"
    assert copy.run("scripts/up") == (0, said)


def test_of_two_commands_at_once_one_installs(copy: Copy) -> None:
    locking = RECORDER.replace("-c*)", f'*flock*) exec {shlex.quote(sys.executable)} "$@" ;;\n-c*)', 1)
    copy.add_python("python3", VERSION, script=locking)
    (copy.path / ".venv").mkdir()
    with (copy.path / ".venv/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command, environment = (
            copy.path / "scripts/up",
            {"PATH": str(copy.programs), "RECORD": str(copy.record)},
        )
        waiting = subprocess.Popen([command], env=environment, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == "Another command is installing forgelet; waiting for it ...\n"
    assert waiting.communicate()[1] == copy_note(copy)
    assert copy.run("scripts/up") == (0, "")
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


@pytest.mark.parametrize("command", COMMANDS)
def test_who_asks_for_help_does_not_wait_for_an_installation(copy: Copy, command: str) -> None:
    assert copy.run(command, "--help") == (0, "")
    assert re.match(rf"[A-Z][^\n]*(: {command} [^\n]*)?\n", copy.printed)
    assert copy.ran() == []


def test_the_environment_for_looking_from_outside_is_made_only_when_it_is_used(copy: Copy) -> None:
    copy.run("scripts/fuzz/run", "--seeds")
    assert copy.installed() == ["."]


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
        sentence = f"FORGELET_PYTHON: {python} is not Python 3.11 or newer.\n"
        assert copy.run("scripts/test", FORGELET_PYTHON=python) == (1, sentence)


@pytest.mark.parametrize("command", ["scripts/test", "scripts/check"])
def test_the_help_names_the_variables(copy: Copy, command: str) -> None:
    assert copy.run(command, "--help")[0] == 0
    assert copy.printed.startswith("Run ")
    assert "FORGELET_PYTHON=" in copy.printed
    assert "set -u" not in copy.printed


def copy_note(copy: Copy, version: str = VERSION) -> str:
    where = f"{copy.path}/.venv/{version}"
    return f"Installing forgelet into {where}; this takes one to two minutes the first time.\n"


def test_the_constraints_are_names_and_versions_and_nothing_else() -> None:
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    assert lines
    for line in lines:
        name, equals, version = line.partition("==")
        assert equals
        assert name.replace("-", "").replace("_", "").replace(".", "").isalnum()
        assert version.replace(".", "").isalnum()


COMPILING = (
    "-P -m pytest -n 2 --dist worksteal -n 0 --collect-only -qq -p no:cacheprovider -o python_functions=."
)


def test_ci_runs_the_checks_beside_the_tests_and_a_sample_of_these_with_the_newest_python(copy: Copy) -> None:
    copy.add_python("python3.9", "", script="#!/bin/sh\nexit 1\n")
    copy.add_python("python3.12", "3.12.4")
    copy.add_python("pyenv/versions/3.13.1/bin/python3", "3.13.1")
    status, _ = copy.run(".ci/run", "-k", "x", PYENV_ROOT=str(copy.programs / "pyenv"))
    assert status == 0
    ran = copy.ran()
    assert sorted(run[-1] for run in ran if "pip" in run) == [".[dev]", ".[openapi]", ".[test]"]
    runs = [" ".join(run[2:]) for run in ran if "pip" not in run]
    first, *others = [run for run in runs if "pytest" in run]
    assert first == COMPILING
    assert sorted(others) == [
        "-P -m pytest -n 2 --dist worksteal --sample -k x",
        COMPILING,
        "-P -m pytest -n 4 --dist worksteal --all -k x",
    ]
    assert sorted(run for run in runs if "pytest" not in run) == [
        "",
        "-m mkdocs build --quiet --strict",
        "-m mypy",
        "-m ruff check .",
        "-m ruff format --check .",
    ]
    assert copy.printed.splitlines()[-3:] == [
        f"Tests with Python {VERSION}: Python {VERSION} was here",
        f"Checks: Python {VERSION} was here",
        "Tests with Python 3.13.1: Python 3.13.1 was here",
    ]


def test_ci_runs_the_tests_once_with_the_only_python(copy: Copy) -> None:
    copy.add_python("python3.11", VERSION)
    assert copy.run(".ci/run")[0] == 0
    assert [run[4:7] for run in copy.ran() if "-P" in run] == [["pytest", "-n", "2"], ["pytest", "-n", "4"]]


@pytest.mark.parametrize(
    ("failing", "failed"),
    [
        (f"{VERSION} -P -m pytest", [True, False, False]),
        ("-m mypy", [False, True, False]),
        ("3.13.1 -P -m pytest", [False, False, True]),
    ],
)
def test_ci_fails_where_one_part_does_and_runs_the_others(
    copy: Copy, failing: str, failed: list[bool]
) -> None:
    copy.add_python("python3.13", "3.13.1")
    assert copy.run(".ci/run", FAILING=failing)[0] == 1
    assert ["FAILED" in line for line in copy.printed.splitlines()[-3:]] == failed


#: A pytest that fails as often as there are lines in `failures`, and caches failures as pytest does.
UNSTEADY = RECORDER.replace(
    "#!/bin/sh\n",
    """#!/bin/sh
case "$*" in *'-m pytest'*)
    mkdir -p .pytest_cache/v/cache
    printf '{\\n  "tests/a.py::one": true,\\n  "tests/b.py::two[x y]": true\\n}' >.pytest_cache/v/cache/lastfailed
esac
""",
)


@pytest.mark.parametrize(
    ("failing", "status"),
    [(f"{VERSION} -P -m pytest -n 4 --dist worksteal --all -k x --", 0), ("-P -m pytest", 1)],
)
def test_ci_runs_once_more_what_failed_and_names_what_is_unsteady(
    copy: Copy, failing: str, status: int
) -> None:
    copy.add_python("python3.11", VERSION, script=UNSTEADY.replace('"VERSION $*"', '"VERSION $* --"'))
    (copy.programs / "python3").unlink()
    assert copy.run(".ci/run", "-k", "x", FAILING=failing)[0] == status
    all_of_them = "-P -m pytest -n 4 --dist worksteal --all -k x"
    again = f"{all_of_them} -n 0 --maxfail 5 --last-failed --last-failed-no-failures none"
    assert [" ".join(run[2:]) for run in copy.ran() if "pytest" in run] == [COMPILING, all_of_them, again]
    assert copy.printed.splitlines()[-2] == f"Tests with Python {VERSION}: " + (
        f"FAILED: Python {VERSION} was here"
        if status
        else "Unsteady, passed at the second try: tests/a.py::one tests/b.py::two[x y]"
    )
