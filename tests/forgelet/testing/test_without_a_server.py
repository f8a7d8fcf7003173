"""What the plug-in costs those who do not use it, and what it says of mistakes before anything is started."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from forgelet.testing.starting import CannotStart, running
from tests.support.checkout import CHECKOUT
from tests.support.preloaded import Programs, preloaded


def said_by(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_plug_in_imports_nothing_that_pytest_has_not() -> None:
    program = "import json, sys, pytest; before = set(sys.modules); import forgelet.pytest; "
    new = json.loads(said_by("-P", "-c", f"{program}print(json.dumps(sorted(set(sys.modules) - before)))"))
    assert new == ["forgelet", "forgelet.pytest"]


def test_what_the_fixtures_use_is_the_standard_library() -> None:
    program = "import forgelet.testing.starting, forgelet.testing.namespaces, sys; print('re' in sys.modules)"
    assert said_by("-P", "-S", "-c", program) == "True\n"  # without site-packages


def test_the_plug_in_is_registered_by_its_name() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"forgelet.pytest": "forgelet.pytest"}


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with preloaded("pytest", "_pytest.junitxml", "_pytest.doctest", "forgelet.pytest") as programs:
        yield programs


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        ("'free'", "the marker gitlab cannot have 'free'. It is gitlab(tier=None,"),
        ("teir='free'", "the marker gitlab cannot have teir=."),
        (
            "tier='gold', version='new', isolation='none'",
            "cannot have tier='gold', version='new', isolation='none'.",
        ),
    ],
)
def test_a_mistaken_marker_is_told(programs: Programs, tmp_path: Path, marker: str, expected: str) -> None:
    marked = f"import pytest\n@pytest.mark.gitlab({marker})\ndef test_one(forgelet): pass\n"
    status, said = outcome(programs, tmp_path, marked)
    assert status == 2
    assert expected in said


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        ("tier='free'", "a unittest.TestCase cannot be given tier= or version= by the marker gitlab"),
        ("teir='free'", "the marker gitlab cannot have teir=."),
    ],
)
def test_a_marker_that_cannot_be_obeyed_is_told(
    programs: Programs, tmp_path: Path, marker: str, expected: str
) -> None:
    marked = (
        f"import pytest, unittest\n@pytest.mark.gitlab({marker})\nclass TestOne(unittest.TestCase):\n"
        "    def test_one(self): raise SystemExit\n"
    )
    status, said = outcome(programs, tmp_path, marked)
    assert status == 1
    assert expected in said


def test_a_marker_of_that_name_that_says_nothing_starts_nothing(programs: Programs, tmp_path: Path) -> None:
    status, said = outcome(programs, tmp_path, "import pytest\n@pytest.mark.gitlab\ndef test_one(): pass\n")
    assert (status, "1 passed" in said) == (0, True), said


@pytest.mark.parametrize(
    ("option", "status", "expected"),
    [
        (
            "--override-ini=forgelet_isolation=fork",
            4,
            "forgelet_isolation is 'fork'; it can be namespace or reset",
        ),
        ("--forgelet-ready-file=gone.json", 1, "gone.json is not the ready file of a server that runs"),
        ("--forgelet-ready-file=list.json", 1, "list.json is not the ready file of a server that runs"),
        ("--forgelet-ready-file=ready.json", 1, "http://127.0.0.1:1 does not answer as a GitLab does to its"),
        ("--forgelet-url=http://127.0.0.1:1", 1, "set FORGELET_ROOT_TOKEN to the administrator's token of"),
        ("--forgelet-url=127.0.0.1:1", 1, "'127.0.0.1:1'; it has to begin with http:// or https://"),
        (
            "--override-ini=forgelet_settings=FORGELET_API_TIER",
            4,
            "forgelet_settings has 'FORGELET_API_TIER'; a line",
        ),
        ("--override-ini=forgelet_settings=TIER=free", 4, "forgelet_settings has 'TIER=free'; a line"),
    ],
)
def test_a_mistaken_option_is_told(
    programs: Programs, tmp_path: Path, option: str, status: int, expected: str
) -> None:
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "ready.json").write_text('{"url": "http://127.0.0.1:1", "root_token": "secret"}')
    ended_with, said = outcome(programs, tmp_path, "def test_one(forgelet): pass\n", option)
    assert ended_with == status
    assert expected in said


def test_what_a_killed_server_has_said_counts_no_more(tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_text('{"url": "http://127.0.0.1:1", "root_token": "secret"}')
    refused = pytest.raises(CannotStart, match="ended with 2 before it was ready")
    with refused, running("--no-such-option", folder=tmp_path):
        raise AssertionError


def outcome(programs: Programs, folder: Path, test: str, *options: str) -> tuple[int, str]:
    (folder / "test_one.py").write_text(test)
    environment = {
        "FORGELET_READY_FILE": "of-the-environment.json",  # options come first
        "PYTHONPATH": str(CHECKOUT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PATH": os.environ["PATH"],
    }
    ours = ["-p", "forgelet.pytest", "-p", "no:cacheprovider", f"--basetemp={folder / 'temporary'}"]
    ran = programs.run("pytest", [*ours, *options], environment, folder=folder)
    said = " ".join((ran.output + ran.errors).split())
    assert "Traceback" not in said
    return ran.status, said
