"""Measures a row: all sides by turns, so that what else the machine does meets them alike."""

from scripts.bench.harness.bench import Bench
from scripts.bench.harness.outcomes import Outcome, Side
from scripts.bench.harness.rows import OURS, Measure, NotMeasured, Row

#: Before the first round, for caches, plans and connections.
WARM_UP = 0.25


def measured(row: Row, group: str, bench: Bench) -> Outcome:
    """Each round begins with another side than the one before it. A row that fails is told as not measured with what
    it failed of, and the others go on."""
    try:
        return _measured(row, group, bench)
    except Exception as problem:
        first = (str(problem).splitlines() or [type(problem).__name__])[0]
        return _outcome(row, group, {}, dict.fromkeys((OURS, *row.aims), f"it failed: {first}"))


def _measured(row: Row, group: str, bench: Bench) -> Outcome:
    try:
        sides = row.sides(bench)
    except NotMeasured as reason:
        return _outcome(row, group, {}, {name: str(reason) for name in (OURS, *row.aims)})
    working = {name: side for name, side in sides.items() if not isinstance(side, NotMeasured)}
    reasons = {name: str(side) for name, side in sides.items() if isinstance(side, NotMeasured)}
    try:
        return _outcome(row, group, _rounds(row, working, bench), reasons)
    except NotMeasured as reason:
        return _outcome(row, group, {}, reasons | dict.fromkeys(working, str(reason)))


def _rounds(row: Row, sides: dict[str, Measure], bench: Bench) -> dict[str, Side]:
    found = {name: Side(name, aim=row.aims.get(name)) for name in sides}
    if row.warmed_up:
        for measure in sides.values():
            measure(min(WARM_UP, bench.size.seconds))
    for number in range(min(bench.size.rounds, row.most_rounds or bench.size.rounds)):
        for name in list(sides)[:: -1 if number % 2 else 1]:
            sample = sides[name](bench.size.seconds)
            found[name].values.append(sample.value)
            if sample.cpu is not None:
                found[name].cpu.append(sample.cpu)
    return found


def _outcome(row: Row, group: str, found: dict[str, Side], reasons: dict[str, str]) -> Outcome:
    missing = {name: Side(name, aim=row.aims.get(name), reason=text) for name, text in reasons.items()}
    sides = {**found, **missing}
    ours = sides.pop(OURS)
    return Outcome(
        row.name, group, row.what, row.unit, row.less_is_better, row.most, ours, list(sides.values())
    )
