"""Test cases, the suites that they are in, and how GitLab shows them. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

Status = Literal["error", "failed", "success", "skipped"]
#: In the order in which cases are shown.
STATUSES: tuple[Status, ...] = ("error", "failed", "success", "skipped")


@attrs.frozen(kw_only=True)
class Case:
    """`seconds` is how long it took; `output` what was wrong: a text, or the attributes of an element without one."""

    status: Status
    suite: str | None
    name: str | None
    classname: str | None
    file: str | None
    seconds: float
    output: Any


@attrs.define
class Suite:
    """The cases of the jobs of one name. One that could not be read has an `error`, and no case counts."""

    name: str
    seconds: float = 0.0
    error: str | None = None
    #: Status -> what tells a case from others -> the case that came last.
    cases: dict[Status, dict[tuple[str | None, ...], Case]] = attrs.field(factory=dict)

    def add(self, case: Case) -> None:
        self.cases.setdefault(case.status, {})[case.suite, case.classname, case.name] = case
        self.seconds += case.seconds

    def take_in(self, other: "Suite") -> None:
        """The cases of a further job."""
        for status, cases in other.cases.items():
            self.cases.setdefault(status, {}).update(cases)
        self.seconds += other.seconds
        self.error = other.error or self.error

    def count(self, status: Status) -> int:
        return 0 if self.error is not None else len(self.cases.get(status, ()))


@attrs.frozen
class JobSuite:
    """What one job has reported."""

    job_id: int
    suite: Suite


def report(jobs: Sequence[JobSuite]) -> dict[str, Any]:
    """The report with all cases, as `GET .../test_report` answers it."""
    suites: dict[str, Suite] = {}
    for job in jobs:
        suites.setdefault(job.suite.name, Suite(job.suite.name)).take_in(job.suite)
    shown = [
        _counted([suite]) | {"suite_error": suite.error, "test_cases": _cases(suite)}
        for suite in suites.values()
    ]
    total = _counted(list(suites.values()))
    del total["name"]
    return total | {"test_suites": shown}


def summary(jobs: Sequence[JobSuite]) -> dict[str, Any]:
    """The counts alone, as `GET .../test_report_summary` answers them."""
    by_name: dict[str, list[JobSuite]] = {}
    for job in jobs:
        by_name.setdefault(job.suite.name, []).append(job)
    total = _counted([job.suite for job in jobs])
    names = ("total_time", "total_count", "success_count", "failed_count", "skipped_count", "error_count")
    return {
        "total": {name.removeprefix("total_").removesuffix("_count"): total[name] for name in names}
        | {"suite_error": _first_error(jobs)},
        "test_suites": [
            _counted([job.suite for job in of_name])
            | {"build_ids": [job.job_id for job in of_name], "suite_error": _first_error(of_name)}
            for of_name in by_name.values()
        ],
    }


def _first_error(jobs: Sequence[JobSuite]) -> str | None:
    return next((job.suite.error for job in jobs if job.suite.error is not None), None)


def _counted(suites: Sequence[Suite]) -> dict[str, Any]:
    """What suites taken together are; the name is the first one's."""
    counts: Mapping[Status, int] = {
        status: sum(suite.count(status) for suite in suites) for status in STATUSES
    }
    return {
        "name": suites[0].name if suites else None,
        "total_time": sum(suite.seconds for suite in suites),
        "total_count": sum(counts.values()),
        "success_count": counts["success"],
        "failed_count": counts["failed"],
        "skipped_count": counts["skipped"],
        "error_count": counts["error"],
    }


def _cases(suite: Suite) -> list[dict[str, Any]]:
    """The worst first, and of those the slowest."""
    if suite.error is not None:
        return []
    return [
        _case(case)
        for status in STATUSES
        for case in sorted(suite.cases.get(status, {}).values(), key=lambda case: -case.seconds)
    ]


def _case(case: Case) -> dict[str, Any]:
    return {
        "status": case.status,
        "name": case.name or "(No name)",
        "classname": case.classname,
        "file": case.file,
        "execution_time": case.seconds,
        "system_output": case.output,
        "stack_trace": None,
        "recent_failures": None,
    }
