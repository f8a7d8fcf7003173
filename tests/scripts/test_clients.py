"""How `scripts/clients/run` reads reports of test runners, and how it runs python-gitlab's tests with a forgelet."""

import json
import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from common.config_errors import ConfigError
from scripts.clients import outcomes as expected
from scripts.clients import outcomes as report
from scripts.clients.outcomes import (
    Expected,
    Outcome,
    Reason,
    from_calls,
    from_junit,
    from_playbook,
    from_tap,
    from_vitest,
)
from scripts.clients.suites import PLUGINS, PROGRAMS, SUITES, Suite
from scripts.documents import SUITES as SHOWN_SUITES
from tests.support.checkout import CHECKOUT

TAP = """
# Seeded srand
not ok 1 - projects {
    ok 1 - made
    not ok 2 - uploads {
    }
    ok 3 - files {
        ok 1 - written
        ok 2 - read # skip no reader
        1..2
    }
    1..3
}
ok 2 - at the end
1..2
"""


def test_subtests_count_where_they_end() -> None:
    assert [(one.test, one.result) for one in from_tap("t/live.t", TAP, 1)] == [
        ("projects > made", "passed"),
        ("projects > uploads", "failed"),
        ("projects > files > written", "passed"),
        ("projects > files > read", "skipped"),
        ("at the end", "passed"),
    ]


def test_a_program_that_dies_has_failed() -> None:
    (died,) = from_tap("t/live.t", "Can't locate Moo.pm\n", 2)
    assert (died.name, died.result, died.message) == ("t/live.t::the whole file", "failed", "ended with 2")


def test_what_a_file_sets_up_fails_all_of_its_tests(tmp_path: Path) -> None:
    files = [
        {"name": "sets_up", "status": "failed", "message": "404 Not\n Found", "tests": [("a", "skipped")]},
        {"name": "cannot_be_read", "status": "failed", "message": "no such module", "tests": []},
        {
            "name": "one_fails",
            "status": "failed",
            "message": "",
            "tests": [("b", "failed"), ("c", "skipped")],
        },
        {"name": "passes", "status": "passed", "message": "", "tests": [("d", "passed")]},
    ]
    results = [
        {
            "name": f"{tmp_path}/{file['name']}.ts",
            "status": file["status"],
            "message": file["message"],
            "assertionResults": [
                {"fullName": name, "status": status, "failureMessages": []} for name, status in file["tests"]
            ],
        }
        for file in files
    ]
    (tmp_path / "report.json").write_text(json.dumps({"testResults": results}))
    assert from_vitest(tmp_path / "report.json", tmp_path) == [
        Outcome("sets_up.ts", "a", "failed", "404 Not Found"),
        Outcome("cannot_be_read.ts", "the whole file", "failed", "no such module"),
        Outcome("one_fails.ts", "b", "failed", ""),
        Outcome("one_fails.ts", "c", "skipped"),
        Outcome("passes.ts", "d", "passed"),
    ]


#: Replaces python-gitlab's conftest: it has the parts that the plug-in replaces.
CONFTEST = """
import time
from subprocess import check_output
import pytest
from tests.functional import helpers

def set_token(container, fixture_dir):
    return check_output(["docker", "exec", container])

def reset_gitlab(gl):
    raise AssertionError("there is nothing to remove")

@pytest.fixture(scope="session")
def gitlab_url(docker_ip, docker_services):
    docker_services.wait_until_responsive(timeout=300, pause=10, check=None)
    return f"http://{docker_ip}:{docker_services.port_for('gitlab', container_port=80)}"

@pytest.fixture(scope="session")
def gitlab_token(gitlab_url):
    reset_gitlab(None)
    return set_token("gitlab-test", fixture_dir=None)
"""
TESTS = """
import time
import pytest

def test_the_server(gitlab_url, gitlab_token):
    time.sleep(3600)
    assert (gitlab_url, gitlab_token) == ("http://127.0.0.1:4711", "flpat-x")

def test_what_fails(gitlab_url):
    assert gitlab_url is None

@pytest.mark.xfail
def test_what_may_fail():
    assert False

@pytest.fixture
def broken():
    yield
    raise RuntimeError("no clean-up")

def test_whose_end_fails(broken):
    pass
"""


def test_python_gitlabs_tests_meet_the_server_that_runs(tmp_path: Path) -> None:
    suite = tmp_path / "tests/functional"
    suite.mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, text in {
        "conftest": CONFTEST,
        "helpers": "import time\n",
        "test_it": TESTS,
        "__init__": "",
    }.items():
        (suite / f"{name}.py").write_text(text)
    (suite.parent / "__init__.py").touch()
    command = "-P -m pytest -q -p no:cacheprovider -p forgelet_for_python_gitlab -o junit_family=xunit1"
    environment = os.environ | {
        "PYTHONPATH": f"{PLUGINS}{os.pathsep}{tmp_path}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "FORGELET_URL": "http://127.0.0.1:4711",
        "FORGELET_TOKEN": "flpat-x",
    }
    ran = subprocess.run(
        [sys.executable, *command.split(), "--junitxml=report.xml", "tests/functional"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    outcomes = {one.name: one.result for one in from_junit(tmp_path / "report.xml", "tests/functional/")}
    assert outcomes == {
        "test_it.py::test_the_server": "passed",
        "test_it.py::test_what_fails": "failed",
        "test_it.py::test_what_may_fail": "skipped",
        "test_it.py::test_whose_end_fails": "failed",
    }, ran.stdout


KNOWN = Expected(
    client="a client 1.0",
    tests="All of them.",
    passed={"a": 1},
    skipped={},
    reasons=[
        Reason("there are none", ["a::fails", "a::gone"]),
        Reason("it is slow", ["b::slow"], may_pass=True),
    ],
)


def test_what_is_as_it_was_is_no_change() -> None:
    outcomes = [
        Outcome("a", "passes", "passed"),
        Outcome("a", "fails", "failed"),
        Outcome("a", "gone", "failed"),
        Outcome("b", "slow", "passed"),
    ]
    assert report.changes(outcomes, KNOWN) == []


def test_each_change_is_told() -> None:
    outcomes = [
        Outcome("a", "passes", "failed", "404"),
        Outcome("a", "fails", "passed"),
        Outcome("c", "new", "skipped"),
        Outcome("b", "slow", "failed"),
    ]
    assert report.changes(outcomes, KNOWN) == [
        "FAILS: a::passes: 404",
        "PASSED, though there are none: a::fails",
        "GONE: a::gone",
        "a: 0 passed, not 1",
        "c: 1 skipped, not 0",
    ]
    assert report.table(outcomes).splitlines()[-1].split() == ["all", "1", "2", "1"]


CALLS = attrs.evolve(
    KNOWN, calls={"files": ["create", "delete"]}, reasons=[Reason("there are none", ["locks::lock"])]
)


def test_each_call_of_a_program_is_known_by_name() -> None:
    printed = "ok\tfiles\tcreate\nfailed\tlocks\tlock\t501 Not\there\nok\tfiles\tread\n"
    outcomes = from_calls(printed, 0, "a warning")
    assert outcomes == [
        Outcome("files", "create", "passed"),
        Outcome("locks", "lock", "failed", "501 Not here"),
        Outcome("files", "read", "passed"),
    ]
    assert report.changes(outcomes, CALLS) == ["GONE: files::delete", "NEW: files::read"]
    stopped = from_calls("failed\tfiles\tcreate\t404\n", 1, "Traceback\nKeyError: 'id'\n")
    assert report.changes(stopped, CALLS) == [
        "FAILS: files::create: 404",
        "FAILS: program::its end: ended with 1: Traceback KeyError: 'id'",
        "GONE: locks::lock",
        "GONE: files::delete",
    ]


#: A task's result in a playbook's run, and its outcome in the first and the second run.
TASKS = [
    ({"changed": True}, "passed", "failed"),
    ({"changed": False}, "passed", "passed"),
    ({"changed": False, "failed": True, "msg": "400"}, "failed", "failed"),
]


def test_the_second_run_of_a_playbook_changes_nothing() -> None:
    tasks = [
        {"task": {"name": f"groups: {i}"}, "hosts": {"localhost": TASKS[i][0]}} for i in range(len(TASKS))
    ]
    printed = json.dumps({"plays": [{"tasks": tasks}]})
    first, second = (from_playbook(printed, "", changes_nothing=again) for again in (False, True))
    assert [(one.name, one.result) for one in first] == [(f"groups::{i}", TASKS[i][1]) for i in range(3)]
    assert [(one.name, one.result) for one in second] == [
        (f"groups::{i}, once more", TASKS[i][2]) for i in range(3)
    ]
    assert [one.message for one in second] == ["changed again", "", "400"]
    assert from_playbook("", "no such module", changes_nothing=False) == [
        Outcome("program", "its end", "failed", "no such module")
    ]


@pytest.mark.parametrize("suite", SUITES)
def test_what_is_written_down_is_of_one_piece(suite: str) -> None:
    written = expected.read(suite)
    names = [name for reason in written.reasons for name in reason.tests]
    names += [f"{area}::{call}" for area, calls in written.calls.items() for call in calls]
    assert len(names) == len(set(names)) > 0
    assert all("::" in name for name in names)
    assert sum(written.passed.values()) > 0


def test_each_suite_can_be_run_and_is_shown() -> None:
    assert set(SUITES) == set(SHOWN_SUITES)
    no_programs = [name for name, suite in SUITES.items() if not suite.written.command]
    assert no_programs == ["ansible", "gitbeaker", "perl", "python-gitlab"]
    programs = [suite.written.command for suite in SUITES.values() if suite.written.command]
    assert all(any((PROGRAMS / word).is_file() for word in command) for command in programs)


def test_a_program_that_is_not_installed_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="The program no-such-program was not found"):
        Suite(attrs.evolve(KNOWN, program="no-such-program"), SUITES["git-lfs"].run).check(PROGRAMS)


@pytest.mark.parametrize(
    "suite",
    [name for name, suite in SUITES.items() if any(not path.startswith("/") for path in suite.written.needs)],
)
def test_a_folder_that_is_no_checkout_is_told_of(suite: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "scripts.clients", suite, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1), ran.stderr
    assert f"{tmp_path} has no " in ran.stderr or "was not found" in ran.stderr
