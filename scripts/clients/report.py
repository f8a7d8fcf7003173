"""What a run says: a table of files, and what is not as it was written down."""

from collections import Counter
from collections.abc import Iterator, Sequence

from scripts.clients.expected import Expected
from scripts.clients.outcomes import Outcome, Result

_RESULTS: tuple[Result, ...] = ("passed", "failed", "skipped")


def table(outcomes: Sequence[Outcome]) -> str:
    """How many tests of each file passed, failed, and were skipped."""
    counts = Counter((outcome.file, outcome.result) for outcome in outcomes)
    files = sorted({outcome.file for outcome in outcomes})
    width = max((len(file) for file in files), default=4)
    lines = [f"{'file':<{width}}" + "".join(f"{result:>9}" for result in _RESULTS)]
    lines += [
        f"{file:<{width}}" + "".join(f"{counts[file, result]:>9}" for result in _RESULTS) for file in files
    ]
    totals = Counter(outcome.result for outcome in outcomes)
    return "\n".join([*lines, f"{'all':<{width}}" + "".join(f"{totals[result]:>9}" for result in _RESULTS)])


def changes(outcomes: Sequence[Outcome], written: Expected) -> list[str]:
    """A line for each test that fails and is not known to, or is known to and does not, and for each file of which
    more or fewer tests pass or are skipped than was written down; of a program of ours, for each call that is new or
    gone."""
    others = _of_calls if written.calls else _of_files
    return [*_of_tests(outcomes, written), *others(outcomes, written)]


def _of_tests(outcomes: Sequence[Outcome], written: Expected) -> Iterator[str]:
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


def _of_files(outcomes: Sequence[Outcome], written: Expected) -> Iterator[str]:
    known = written.failing
    now = Counter((one.file, one.result) for one in outcomes if one.name not in known)
    numbers: dict[Result, dict[str, int]] = {"passed": written.passed, "skipped": written.skipped}
    for result, then in numbers.items():
        for file in sorted({file for file, kind in now if kind == result} | set(then)):
            if now[file, result] != then.get(file, 0):
                yield f"{file}: {now[file, result]} {result}, not {then.get(file, 0)}"


def _of_calls(outcomes: Sequence[Outcome], written: Expected) -> Iterator[str]:
    made = {outcome.name: outcome.result for outcome in outcomes}
    calls = [f"{area}::{call}" for area, calls in written.calls.items() for call in calls]
    yield from (f"GONE: {call}" for call in calls if call not in made)
    known = {*calls, *written.failing}
    yield from (f"NEW: {name}" for name, result in made.items() if result == "passed" and name not in known)
