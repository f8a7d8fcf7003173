"""Outcomes of a suite's tests, read from the report of its test runner, and compared with the recorded ones."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import attrs

from scripts.harness.report import Table, markdown_table

Result = Literal["passed", "failed", "skipped"]


@attrs.frozen
class Outcome:
    """The outcome of one test; `file` is relative to the suite's folder."""

    file: str
    test: str
    result: Result
    message: str = ""

    @property
    def name(self) -> str:
        return f"{self.file}::{self.test}"


def from_junit(report: Path, below: str) -> list[Outcome]:
    """Return the outcomes in a report of pytest in the format xunit1; `below` is removed from the beginning of files'
    paths. A test whose clean-up failed too counts once."""
    outcomes: dict[str, Outcome] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = _of_case(case, below)
        if outcome.name not in outcomes or outcome.result == "failed":
            outcomes[outcome.name] = outcome
    return list(outcomes.values())


def _of_case(case: ElementTree.Element, below: str) -> Outcome:
    file = case.get("file", "").removeprefix(below)
    for child in case:
        if child.tag in ("failure", "error"):
            return Outcome(file, case.get("name", ""), "failed", _one_line(child.get("message", "")))
        if child.tag == "skipped":
            return Outcome(file, case.get("name", ""), "skipped", _one_line(child.get("message", "")))
    return Outcome(file, case.get("name", ""), "passed")


def from_vitest(report: Path, below: Path) -> list[Outcome]:
    """Return the outcomes in vitest's JSON. If the set-up of a file failed, all of its tests count as failed."""
    outcomes: list[Outcome] = []
    for file in json.loads(report.read_bytes())["testResults"]:
        tests = file["assertionResults"]
        broken = file["status"] == "failed" and not any(test["status"] == "failed" for test in tests)
        path = str(Path(file["name"]).relative_to(below))
        outcomes += [_of_assertion(path, test, broken, file.get("message", "")) for test in tests]
        if broken and not tests:
            outcomes.append(Outcome(path, "the whole file", "failed", _one_line(file.get("message", ""))))
    return outcomes


def _of_assertion(path: str, test: dict[str, Any], broken: bool, file_message: str) -> Outcome:
    if test["status"] == "passed":
        return Outcome(path, test["fullName"], "passed")
    if test["status"] == "failed" or broken:
        messages = test.get("failureMessages") or [file_message]
        return Outcome(path, test["fullName"], "failed", _one_line(messages[0]))
    return Outcome(path, test["fullName"], "skipped")


_TAP = re.compile(r"(?P<indent> *)(?P<no>not )?ok \d+ - (?P<name>.*?)(?P<skip> # skip.*)?(?P<opens> \{)?$")


def from_tap(file: str, text: str, status: int) -> list[Outcome]:
    """Return the outcomes in the output of one test program, with subtests in braces; `status` is its exit status.
    Only a subtest without subtests of its own counts, for example one that an exception has cut short."""
    outcomes = list(_leaves(file, text.splitlines()))
    if status and not any(outcome.result == "failed" for outcome in outcomes):
        outcomes.append(Outcome(file, "the whole file", "failed", f"ended with {status}"))
    return outcomes


def _leaves(file: str, lines: list[str]) -> Iterator[Outcome]:
    above: list[str] = []
    for index, line in enumerate(lines):
        match = _TAP.fullmatch(line)
        if match is None:
            continue
        above = above[: len(match["indent"]) // 4]
        name = " > ".join([*above, match["name"]])
        if match["opens"]:
            above.append(match["name"])
            if index + 1 < len(lines) and lines[index + 1].strip() != "}":
                continue
        result: Result = "failed" if match["no"] else "skipped" if match["skip"] else "passed"
        yield Outcome(file, name, result)


def from_calls(printed: str, status: int, errors: str) -> list[Outcome]:
    """Return the outcomes in the output of one of our programs. It has a line for each call with fields between tabs:
    `ok` or `failed`, the area, the call, and the reason of a failure. `status` is the exit status,
    `errors` standard error."""
    outcomes = []
    for line in printed.splitlines():
        status_word, area, call, *message = line.split("\t", 3)
        outcomes.append(
            Outcome(area, call, "passed" if status_word == "ok" else "failed", _one_line(" ".join(message)))
        )
    if status:
        outcomes.append(Outcome("program", "its end", "failed", f"ended with {status}: {_one_line(errors)}"))
    return outcomes


def from_playbook(printed: str, errors: str, *, changes_nothing: bool) -> list[Outcome]:
    """Return the outcomes in the output of Ansible's callback `json`, one for each task, whose name is its area and
    the call. With `changes_nothing`, a change counts as a failure."""
    try:
        (play,) = json.loads(printed)["plays"]
    except ValueError:
        return [Outcome("program", "its end", "failed", _one_line(errors or printed))]
    outcomes = []
    for task in play["tasks"]:
        area, _, call = task["task"]["name"].partition(": ")
        answer = task["hosts"]["localhost"]
        message = _one_line(str(answer.get("exception", answer.get("msg", "")))[-200:])
        if changes_nothing:
            call, message = f"{call}, once more", message if answer.get("failed") else "changed again"
        failed = answer.get("failed") or (changes_nothing and answer["changed"])
        outcomes.append(Outcome(area, call, "failed", message) if failed else Outcome(area, call, "passed"))
    return outcomes


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


FOLDER = Path(__file__).with_name("expected")


@attrs.frozen
class Reason:
    """Why tests fail. With `may_pass`, they fail only sometimes."""

    why: str
    tests: list[str]
    may_pass: bool = False


@attrs.frozen
class Expected:
    """The recorded outcome of a suite. `client` includes the client's version; `passed` and `skipped` are numbers of
    tests by file. For a program of ours, `calls` are the working calls by area, and `command` runs it.

    `needs` maps files (relative to FOLDER, or absolute) to what the user has to do if one is missing; `program` has to
    be installed; `options` are additional options of the server.
    """

    client: str
    tests: str
    passed: dict[str, int]
    skipped: dict[str, int]
    reasons: list[Reason]
    calls: dict[str, list[str]] = attrs.field(factory=dict)
    command: list[str] = attrs.field(factory=list)
    needs: dict[str, str] = attrs.field(factory=dict)
    program: str | None = None
    options: list[str] = attrs.field(factory=list)

    @property
    def failing(self) -> dict[str, Reason]:
        """The reasons by the name of the failing test."""
        return {test: reason for reason in self.reasons for test in reason.tests}


def read(suite: str) -> Expected:
    with (FOLDER / f"{suite}.toml").open("rb") as file:
        document: dict[str, Any] = tomllib.load(file)
    reasons = [Reason(**reason) for reason in document.pop("failing", [])]
    passed = {area: len(calls) for area, calls in document.get("calls", {}).items()}
    return Expected(**{"passed": passed, "skipped": {}} | document, reasons=reasons)


def section(suites: Iterable[str]) -> str:
    """Return the part of docs/compatibility.md about `suites`."""
    return "\n\n".join(part for suite in suites for part in _parts(read(suite)))


def _parts(written: Expected) -> Iterator[str]:
    failed = Counter(test.partition("::")[0] for test in written.failing)
    counts = (Counter(written.passed), failed, Counter(written.skipped))
    files = sorted({file for count in counts for file in count})
    rows = [(file, *(count[file] for count in counts)) for file in files]
    rows.append(("all", *(count.total() for count in counts)))
    file, subject = ("Area", "calls") if written.calls else ("File", "tests")
    yield f"### {written.client}"
    yield written.tests
    yield markdown_table(file, "Passed", "Failed", "Skipped", rows=rows)
    if written.reasons:
        reasons = sorted(written.reasons, key=lambda reason: -len(reason.tests))
        reason_rows = [(reason.why, len(reason.tests)) for reason in reasons]
        yield markdown_table(f"Why {subject} fail", "How many", rows=reason_rows)


_RESULTS: tuple[Result, ...] = ("passed", "failed", "skipped")


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a table of how many tests of each file passed, failed, and were skipped."""
    counts = Counter((outcome.file, outcome.result) for outcome in outcomes)
    files = sorted({outcome.file for outcome in outcomes})
    totals = Counter(outcome.result for outcome in outcomes)
    grid = Table(("file", max(map(len, files), default=4)), *((result, 9) for result in _RESULTS))
    rows = [grid.row(file, *(counts[file, result] for result in _RESULTS)) for file in files]
    return "\n".join([grid.heading, *rows, grid.row("all", *(totals[result] for result in _RESULTS))])


def changes(outcomes: Sequence[Outcome], written: Expected) -> list[str]:
    """Return a line for each test whose failure is not recorded, each recorded failure that does not happen, and each
    file with another number of passed or skipped tests than recorded; for a program of ours, for each new or missing
    call."""
    others = _changed_calls if written.calls else _changed_files
    return [*_changed_tests(outcomes, written), *others(outcomes, written)]


def _changed_tests(outcomes: Sequence[Outcome], written: Expected) -> Iterator[str]:
    failing = written.failing
    results = {outcome.name: outcome for outcome in outcomes}
    for name, outcome in results.items():
        if outcome.result == "failed" and name not in failing:
            yield f"FAILS: {name}: {outcome.message}"
    for name, reason in failing.items():
        if name not in results:
            yield f"GONE: {name}"
        elif results[name].result != "failed" and not reason.may_pass:
            yield f"{results[name].result.upper()}, though {reason.why}: {name}"


def _changed_files(outcomes: Sequence[Outcome], written: Expected) -> Iterator[str]:
    failing = written.failing
    now = Counter((outcome.file, outcome.result) for outcome in outcomes if outcome.name not in failing)
    numbers: dict[Result, dict[str, int]] = {"passed": written.passed, "skipped": written.skipped}
    for result, expected in numbers.items():
        for file in sorted({file for file, kind in now if kind == result} | set(expected)):
            if now[file, result] != expected.get(file, 0):
                yield f"{file}: {now[file, result]} {result}, not {expected.get(file, 0)}"


def _changed_calls(outcomes: Sequence[Outcome], written: Expected) -> Iterator[str]:
    made = {outcome.name: outcome.result for outcome in outcomes}
    calls = [f"{area}::{call}" for area, calls in written.calls.items() for call in calls]
    yield from (f"GONE: {call}" for call in calls if call not in made)
    names = {*calls, *written.failing}
    yield from (f"NEW: {name}" for name, result in made.items() if result == "passed" and name not in names)
