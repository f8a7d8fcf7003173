"""pytest's plug-in as authors of clients run it: in a process of its own, in a folder of theirs."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from forgelet.testing.starting import CannotStart, running
from tests.support.checkout import CHECKOUT
from tests.support.forge import ROOT_TOKEN, Forge
from tests.support.preloaded import Programs, preloaded
from tests.support.waiting import until

SECONDS = 120
TESTS = Path(__file__).parent / "of_clients"


@contextlib.contextmanager
def session(
    folder: Path, tests: str, *arguments: str, **environment: str
) -> Iterator["subprocess.Popen[str]"]:
    """A function that runs a module of `of_clients/` in `folder`. Plug-ins are not loaded automatically there, but
    named."""
    shutil.copy(TESTS / f"{tests}.py", folder / f"test_{tests}.py")
    with (folder / "pytest.ini").open("a") as config:
        if config.tell() == 0:
            config.write("[pytest]\n")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("FORGELET_", "PYTEST_"))}
    process = subprocess.Popen(
        [
            sys.executable, "-P", "-m", "pytest", "-p", "forgelet.pytest", "-p", "no:cacheprovider", "-v",
            "--strict-markers", "-W", "error", "--basetemp", str(folder / "temporary"), *arguments,
        ],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(CHECKOUT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Return exit status and output."""
    output, _ = process.communicate(timeout=SECONDS)
    return process.returncode, output


def is_gone(pid: int) -> bool:
    """Return whether the process no longer exists."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


async def test_a_session_of_tests(tmp_path: Path) -> None:
    waits = tmp_path / "waits"
    (tmp_path / "pytest.ini").write_text("[pytest]\nforgelet_options = --runner\n")
    with session(tmp_path, "one_process", PGOPTIONS="-c search_path=mine", PGSERVICE="mine") as running:
        await until(lambda: (waits.exists() and waits.read_text()) or running.poll() is not None, seconds=150)
        running.send_signal(signal.SIGINT)
        status, output = ended(running)
    expected = set(re.findall(r"def (test_\w+)", (TESTS / "one_process.py").read_text())) - {
        "test_the_last_one"
    }
    assert set(re.findall(r"::(test_\w+)\S* PASSED", output)) == expected, output
    assert not re.search(r" (FAILED|ERROR) ", output), output
    assert status == 2
    pid, data_dir = json.loads(waits.read_text())
    assert is_gone(pid)
    assert not Path(data_dir).exists()


def test_a_server_that_does_not_start_tells_why(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nforgelet_options = --no-such-option\n")
    with session(tmp_path, "one_process", "-k", "test_the_server or test_requests", "-rN") as running:
        status, output = ended(running)
    assert status == 1
    assert output.count("forgelet ended with 2 before it was ready") == 2
    assert output.count("Error: No such option '--no-such-option'") == 2
    assert "Traceback" not in output
    assert "During handling" not in output


async def test_a_server_that_runs_already(forge: Forge, tmp_path: Path) -> None:
    with session(
        tmp_path, "by_hand", f"--forgelet-url={forge.base}", FORGELET_ROOT_TOKEN=ROOT_TOKEN
    ) as running:
        status, output = await asyncio.to_thread(ended, running)
    outcomes = dict(re.findall(r"::(test_\w+)\S* (\w+)", output))
    assert outcomes == {
        "test_users_and_projects": "PASSED",
        "test_controls": "PASSED",
        "test_what_is_left_of_failures_of_a_server_that_is_gone": "PASSED",
        "test_its_version": "PASSED",
        "test_another_version": "SKIPPED",
        "test_a_tier": "SKIPPED",
    }, output
    assert status == 0


WORKERS = ("-p", "xdist", "-n", "2", "--dist", "each")


async def test_a_shared_server_ends_with_the_last_worker(tmp_path: Path) -> None:
    waiting = [tmp_path / f"waits-gw{number}" for number in range(2)]
    (tmp_path / "pytest.ini").write_text("[pytest]\nforgelet_options = --no-edge\n")
    with session(tmp_path, "two_workers", *WORKERS, "--forgelet-shared") as running:
        output = await asyncio.to_thread(_heard, running, r"PASSED .*::test_no_reset_by_hand", 2)
        await until(lambda: all(map(Path.exists, waiting)) or running.poll() is not None, seconds=150)
        running.kill()
    assert all(map(Path.exists, waiting)), output
    assert len(re.findall(r"PASSED .*::test_all_that", output)) == 16, output
    assert len(re.findall(r"PASSED .*::test_a_server_of_its_kind.*\[free-16.11\]", output)) == 4, output
    assert len(re.findall(r"ERROR .*::test_no_reset\[free-16.11\]", output)) == 2, output
    (told,) = {path.read_text() for path in waiting}
    pid, data_dir = json.loads(told)
    await until(lambda: is_gone(pid) and not Path(data_dir).exists(), seconds=60)


def _heard(process: "subprocess.Popen[str]", pattern: str, times: int) -> str:
    """Return the output up to the line in which `pattern` occurs for the `count`th time, since workers are ahead of
    the output."""
    assert process.stdout is not None
    output = ""
    while times:
        line = process.stdout.readline()
        assert line, output
        output += line
        times -= re.search(pattern, line) is not None
    return output


def test_reset_of_what_is_shared_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nforgelet_isolation = reset\nforgelet_shared = true\n")
    with session(tmp_path, "two_workers", *WORKERS) as running:
        status, output = ended(running)
    assert status == 4
    assert "ERROR: forgelet: isolation by reset wants a server of one's own" in output


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
