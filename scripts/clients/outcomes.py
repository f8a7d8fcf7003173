"""What became of the tests of a suite, read from what its test runner reports."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import attrs

Result = Literal["passed", "failed", "skipped"]


@attrs.frozen
class Outcome:
    """Of one test; `file` is below the suite's folder."""

    file: str
    test: str
    result: Result
    message: str = ""

    @property
    def name(self) -> str:
        return f"{self.file}::{self.test}"


def from_junit(report: Path, below: str) -> list[Outcome]:
    """Of pytest's report in the form xunit1; `below` is what files' paths begin with. A test whose clean-up failed too
    is one test."""
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = _of_case(case, below)
        if outcome.name not in found or outcome.result == "failed":
            found[outcome.name] = outcome
    return list(found.values())


def _of_case(case: ElementTree.Element, below: str) -> Outcome:
    file = case.get("file", "").removeprefix(below)
    for child in case:
        if child.tag in ("failure", "error"):
            return Outcome(file, case.get("name", ""), "failed", _one_line(child.get("message", "")))
        if child.tag == "skipped":
            return Outcome(file, case.get("name", ""), "skipped", _one_line(child.get("message", "")))
    return Outcome(file, case.get("name", ""), "passed")


def from_vitest(report: Path, below: Path) -> list[Outcome]:
    """Of vitest's JSON. Where what a file sets up failed, all of its tests have."""
    found: list[Outcome] = []
    for file in json.loads(report.read_bytes())["testResults"]:
        tests = file["assertionResults"]
        broken = file["status"] == "failed" and not any(test["status"] == "failed" for test in tests)
        path = str(Path(file["name"]).relative_to(below))
        found += [_of_assertion(path, test, broken, file.get("message", "")) for test in tests]
        if broken and not tests:
            found.append(Outcome(path, "the whole file", "failed", _one_line(file.get("message", ""))))
    return found


def _of_assertion(path: str, test: dict[str, Any], broken: bool, said: str) -> Outcome:
    if test["status"] == "passed":
        return Outcome(path, test["fullName"], "passed")
    if test["status"] == "failed" or broken:
        messages = test.get("failureMessages") or [said]
        return Outcome(path, test["fullName"], "failed", _one_line(messages[0]))
    return Outcome(path, test["fullName"], "skipped")


_TAP = re.compile(r"(?P<indent> *)(?P<no>not )?ok \d+ - (?P<name>.*?)(?P<skip> # skip.*)?(?P<opens> \{)?$")


def from_tap(file: str, text: str, status: int) -> list[Outcome]:
    """Of what one test program printed, subtests in braces; `status` is that with which it ended. A subtest counts
    where it has none below it: such as one that was cut short by an exception."""
    found = list(_leaves(file, text.splitlines()))
    if status and not any(one.result == "failed" for one in found):
        found.append(Outcome(file, "the whole file", "failed", f"ended with {status}"))
    return found


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


def from_calls(printed: str, status: int, said: str) -> list[Outcome]:
    """Of what one of our programs printed: a line for each call, with its fields between tabs: `ok` or `failed`, area,
    call, and where it failed why. `status` is that with which it ended, `said` what it wrote to its standard error."""
    found = []
    for line in printed.splitlines():
        word, area, call, *message = line.split("\t", 3)
        found.append(
            Outcome(area, call, "passed" if word == "ok" else "failed", _one_line(" ".join(message)))
        )
    if status:
        found.append(Outcome("program", "its end", "failed", f"ended with {status}: {_one_line(said)}"))
    return found


def from_playbook(printed: str, said: str, *, changes_nothing: bool) -> list[Outcome]:
    """Of what Ansible's callback `json` printed: an outcome for each task, whose name is its area and what it does.
    Where it `changes_nothing`, a change is a failure."""
    try:
        (play,) = json.loads(printed)["plays"]
    except ValueError:
        return [Outcome("program", "its end", "failed", _one_line(said or printed))]
    found = []
    for task in play["tasks"]:
        area, _, call = task["task"]["name"].partition(": ")
        answer = task["hosts"]["localhost"]
        message = _one_line(str(answer.get("exception", answer.get("msg", "")))[-200:])
        if changes_nothing:
            call, message = f"{call}, once more", message if answer.get("failed") else "changed again"
        failed = answer.get("failed") or (changes_nothing and answer["changed"])
        found.append(Outcome(area, call, "failed", message) if failed else Outcome(area, call, "passed"))
    return found


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
