"""Two runs: which rows got slower, by more than their rounds differ among themselves."""

import statistics
from collections.abc import Iterator

from scripts.bench.harness.outcomes import Outcome, Run

#: Less is within what two runs of the same code differ by on a quiet machine.
LEAST = 0.05


def slower(old: Run, new: Run) -> list[str]:
    """A sentence for each. Rows with peers are compared by their shares, which another machine changes less; those
    that have none, by our own figures. What one of the runs has not measured is left out."""
    return [
        sentence
        for outcome in new.outcomes
        if (before := old.of(outcome.name)) is not None
        for sentence in _of_row(before, outcome)
    ]


def not_compared(old: Run, new: Run) -> list[str]:
    """Rows of the new run that the old one does not have, or has not measured."""
    return [
        outcome.name
        for outcome in new.outcomes
        if outcome.ours.values and ((before := old.of(outcome.name)) is None or not before.ours.values)
    ]


def _of_row(old: Outcome, new: Outcome) -> Iterator[str]:
    if not (old.ours.values and new.ours.values):
        return
    known = {other.name: other for other in old.others if other.values}
    pairs = [(known[other.name], other) for other in new.others if other.values and other.name in known]
    for before, after in pairs:
        yield from _worse(f"{new.name}: share of {after.name}", old.shares(before), new.shares(after))
    if not pairs:
        sign = -1.0 if new.less_is_better else 1.0
        values = [[value**sign for value in outcome.ours.values] for outcome in (old, new)]
        yield from _worse(f"{new.name}: {'1 / ' if sign < 0 else ''}{new.unit}", *values)


def _worse(what: str, before: list[float], after: list[float]) -> Iterator[str]:
    """Where no round of the new run was as good as the worst one of the old."""
    was, is_now = statistics.median(before), statistics.median(after)
    if max(after) < min(before) and is_now < was * (1 - LEAST):
        yield f"{what} fell from {was:.3g} to {is_now:.3g} ({1 - is_now / was:.0%})"
