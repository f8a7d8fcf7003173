"""What a measurement gives: rows of one table, or the reason why there is none."""

import statistics
from collections.abc import Callable

import attrs


class SkippedError(Exception):
    """This machine lacks what the measurement compares with; the text says what."""


@attrs.frozen
class Row:
    """`ours` and `theirs` in the same unit, more is better; `aim` is the least share that we want."""

    what: str
    ours: float
    theirs: float
    compared_with: str
    aim: float
    unit: str = "requests/s"

    @property
    def share(self) -> float:
        return self.ours / self.theirs

    def __str__(self) -> str:
        verdict = "" if self.share >= self.aim else "  MISSED"
        return (
            f"{self.what}: {self.ours:,.0f} {self.unit}; {self.compared_with}: {self.theirs:,.0f};"
            f" share {self.share:.3g}, aim {self.aim:.2g}{verdict}"
        )


@attrs.frozen
class Limit:
    """What has been `measured`, where less is better, and what it may be at `most`, in the same unit."""

    what: str
    measured: float
    most: float
    unit: str

    def __str__(self) -> str:
        verdict = "" if self.measured <= self.most else "  MISSED"
        return f"{self.what}: {self.measured:.3g} {self.unit}, at most {self.most:g}{verdict}"


def by_turns(ours: Callable[[], float], theirs: Callable[[], float], rounds: int = 3) -> tuple[float, float]:
    """The medians of both, measured by turns so that what else the machine does meets both alike."""
    measured = [(ours(), theirs()) for _ in range(rounds)]
    return statistics.median(a for a, _ in measured), statistics.median(b for _, b in measured)
