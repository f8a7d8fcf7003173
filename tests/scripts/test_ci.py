"""What continuous integration runs, with a recorder as Python."""

import pytest

from .copied import RECORDER, VERSION, Copy


def test_ci_runs_the_checks_beside_the_tests_and_a_sample_of_these_with_the_newest_python(copy: Copy) -> None:
    copy.add_python("python3.9", "", script="#!/bin/sh\nexit 1\n")
    copy.add_python("python3.12", "3.12.4")
    copy.add_python("pyenv/versions/3.13.1/bin/python3", "3.13.1")
    status, _ = copy.run(".ci/run", "-k", "x", PYENV_ROOT=str(copy.programs / "pyenv"))
    assert status == 0
    ran = copy.ran()
    assert sorted(run[-1] for run in ran if "pip" in run) == [".[dev]", ".[openapi]", ".[test]"]
    runs = [" ".join(run[2:]) for run in ran if "pip" not in run]
    assert [run for run in runs if "pytest" in run] == [
        "-P -m pytest -n 3 --dist worksteal --all -k x",
        "-P -m pytest -n 2 --dist worksteal --sample -k x",
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
    assert [run[4] for run in copy.ran() if "-P" in run] == ["pytest"]


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


#: A pytest that fails as often as there are lines in `failures`, and remembers what failed as pytest does.
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
    [(f"{VERSION} -P -m pytest -n 3 --dist worksteal --all -k x --", 0), ("-P -m pytest", 1)],
)
def test_ci_runs_once_more_what_failed_and_names_what_is_unsteady(
    copy: Copy, failing: str, status: int
) -> None:
    copy.add_python("python3.11", VERSION, script=UNSTEADY.replace('"VERSION $*"', '"VERSION $* --"'))
    (copy.programs / "python3").unlink()
    assert copy.run(".ci/run", "-k", "x", FAILING=failing)[0] == status
    all_of_them = "-P -m pytest -n 3 --dist worksteal --all -k x"
    again = f"{all_of_them} -n 0 --maxfail 5 --last-failed --last-failed-no-failures none"
    assert [" ".join(run[2:]) for run in copy.ran() if "pytest" in run] == [all_of_them, again]
    assert copy.printed.splitlines()[-2] == f"Tests with Python {VERSION}: " + (
        f"FAILED: Python {VERSION} was here"
        if status
        else "Unsteady, passed at the second try: tests/a.py::one tests/b.py::two[x y]"
    )
