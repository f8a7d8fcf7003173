"""The shell commands: what they install and when, and what they run, with a recorder as Python."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import CHECKOUT

COMMANDS = ["scripts/up", "scripts/test", "scripts/check", ".ci/run"]
RECORDER = """#!/bin/sh
case "$*" in
-c*) echo 3.11 ;;
'-m pip --version') ;;
*) printf '%s|' "$PWD" "${PYTHONPATH-}" "$@" >>"$RECORD"; echo >>"$RECORD" ;;
esac
case "$*" in *"${FAILING:-nothing at all}"*) exit 1 ;; esac
"""


class Copy:
    """A checkout in a folder with a space, whose Python writes down what it is asked to run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "record"
        shutil.copytree(CHECKOUT / "scripts", path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(CHECKOUT / name, path / name)
        for name in ("python", "lint-imports"):
            program = path / ".venv/bin" / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(RECORDER)
            program.chmod(0o755)

    def run(self, command: str, *arguments: str, **environment: str) -> tuple[int, str]:
        """Exit status and standard error."""
        done = subprocess.run(
            [str(self.path / command), *arguments],
            cwd="/",
            env={"PATH": os.environ["PATH"], "RECORD": str(self.record), **environment},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stderr

    def ran(self) -> list[list[str]]:
        """Working folder, PYTHONPATH and arguments of each run since the last question."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        self.record.unlink(missing_ok=True)
        return [line.split("|")[:-1] for line in lines]

    def installed(self) -> list[str]:
        """What each run of pip since the last question installed."""
        return [run[-1] for run in self.ran() if "pip" in run]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    path = tmp_path / "check out"
    path.mkdir()
    return Copy(path)


@pytest.mark.parametrize("command", [*COMMANDS, "scripts/local/python.sh"])
def test_the_commands_are_plain_shell(command: str) -> None:
    assert subprocess.run(["/bin/sh", "-n", str(CHECKOUT / command)]).returncode == 0
    assert command.endswith(".sh") or os.access(CHECKOUT / command, os.X_OK)


def test_up_runs_from_any_folder_with_its_arguments_as_they_are(copy: Copy) -> None:
    assert copy.run("scripts/up", "--data-dir", "a b") == (0, copy_note(copy))
    *_, last = copy.ran()
    assert last == ["/", str(copy.path), "-P", "-m", "scripts.local.up", "--data-dir", "a b"]


def test_an_installation_is_made_once_until_what_it_depends_on_changes(copy: Copy) -> None:
    copy.run("scripts/up")
    assert copy.installed() == ["."]
    assert copy.run("scripts/up") == (0, "")
    assert copy.installed() == []
    with (copy.path / "constraints.txt").open("a") as constraints:
        constraints.write("one-more==1.0\n")
    copy.run("scripts/up")
    assert copy.installed() == ["."]


def test_the_tests_and_the_checks_bring_what_they_need_and_it_serves_the_others_too(copy: Copy) -> None:
    copy.run("scripts/up")
    copy.run("scripts/test")
    assert copy.installed() == [".", ".[test]"]
    copy.run("scripts/check")
    copy.run("scripts/test")
    copy.run("scripts/up")
    assert copy.installed() == [".[dev]"]


def test_an_installation_that_failed_is_tried_again(copy: Copy) -> None:
    status, errors = copy.run("scripts/up", FAILING="install")
    assert status == 1
    assert errors.endswith("The dependencies could not be installed; see above.\n")
    copy.run("scripts/up")
    assert copy.installed() == [".", "."]


def test_test_hands_its_arguments_to_pytest_in_the_checkout(copy: Copy) -> None:
    copy.run("scripts/test", "tests/edge", "-k", "a or b")
    *_, last = copy.ran()
    assert last[0] == str(copy.path)
    assert last[2:] == ["-P", "-m", "pytest", "-n", "2", "tests/edge", "-k", "a or b"]


def test_check_runs_every_check_and_names_those_that_failed(copy: Copy) -> None:
    copy.run("scripts/check")
    copy.ran()
    status, errors = copy.run("scripts/check", FAILING="ruff check")
    assert (status, errors) == (1, "Failed: ruff check\n")
    assert [" ".join(run[2:]) for run in copy.ran()] == [
        "-m ruff check .",
        "-m ruff format --check .",
        "-m mypy",
        "",
    ]
    assert copy.run("scripts/check") == (0, "")


def test_without_a_new_enough_python_one_sentence_says_so(copy: Copy, tmp_path: Path) -> None:
    shutil.rmtree(copy.path / ".venv")
    old = tmp_path / "bin"
    old.mkdir()
    for name in ("dirname", "sh", "cksum", "cat"):
        (old / name).symlink_to(str(shutil.which(name)))
    (old / "python3").write_text("#!/bin/sh\nexit 1\n")
    (old / "python3").chmod(0o755)
    assert copy.run("scripts/up", PATH=str(old)) == (
        1,
        "Python 3.11 or newer was not found on PATH; install it and try again.\n",
    )


def copy_note(copy: Copy) -> str:
    return f"Installing into {copy.path}/.venv (about a minute the first time) ...\n"


def test_the_constraints_are_names_and_versions_and_nothing_else() -> None:
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    assert lines
    for line in lines:
        name, equals, version = line.partition("==")
        assert equals
        assert name.replace("-", "").replace("_", "").replace(".", "").isalnum()
        assert version.replace(".", "").isalnum()
