"""What is written down of each suite: which tests are known to fail, and why; how many of each file pass, or where the
program is ours, which calls work."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

FOLDER = Path(__file__).with_name("expected")


@attrs.frozen
class Reason:
    """Why tests fail. Where `may_pass`, they do so by chance only."""

    why: str
    tests: list[str]
    may_pass: bool = False


@attrs.frozen
class Expected:
    """`client` has its version; `passed` and `skipped` are numbers of tests by file. Of a program of ours, `calls` are
    those that work, by their area."""

    client: str
    tests: str
    passed: dict[str, int]
    skipped: dict[str, int]
    reasons: list[Reason]
    calls: dict[str, list[str]] = attrs.field(factory=dict)

    @property
    def failing(self) -> dict[str, Reason]:
        """By name of the test."""
        return {test: reason for reason in self.reasons for test in reason.tests}


def read(suite: str) -> Expected:
    with (FOLDER / f"{suite}.toml").open("rb") as file:
        said: dict[str, Any] = tomllib.load(file)
    reasons = [Reason(**one) for one in said.pop("failing", [])]
    passed = {area: len(calls) for area, calls in said.get("calls", {}).items()}
    return Expected(**{"passed": passed, "skipped": {}} | said, reasons=reasons)


def section(suites: Iterable[str]) -> str:
    """The part of docs/compatibility.md about `suites`."""
    return "\n\n".join(part for suite in suites for part in _parts(read(suite)))


def _parts(written: Expected) -> list[str]:
    failed = [test.partition("::")[0] for test in written.failing]
    files = sorted({*written.passed, *written.skipped, *failed})
    rows = [
        f"| {file} | {written.passed.get(file, 0)} | {failed.count(file)} | {written.skipped.get(file, 0)} |"
        for file in files
    ]
    passed, skipped = sum(written.passed.values()), sum(written.skipped.values())
    rows.append(f"| all | {passed} | {len(failed)} | {skipped} |")
    reasons = sorted(written.reasons, key=lambda reason: -len(reason.tests))
    file, what = ("Area", "calls") if written.calls else ("File", "tests")
    parts = [
        f"### {written.client}",
        written.tests,
        "\n".join([f"| {file} | Passed | Failed | Skipped |", "|---|---|---|---|", *rows]),
    ]
    if reasons:
        table = [f"| {reason.why} | {len(reason.tests)} |" for reason in reasons]
        parts.append("\n".join([f"| Why {what} fail | How many |", "|---|---|", *table]))
    return parts
