"""What has been measured: figures of each round, shares, their spread; as JSON, and read from it."""

import statistics
from pathlib import Path

import attrs
import cattrs
import orjson

from scripts.bench.harness.rows import OURS


@attrs.frozen
class Side:
    """The figures of one program, a value each round; without any, `reason` says why."""

    name: str
    values: list[float] = attrs.field(factory=list)
    cpu: list[float] = attrs.field(factory=list)  # microseconds a unit of work
    aim: float | None = None
    reason: str = ""


@attrs.frozen
class Outcome:
    """A row as it was measured: ours, and the others in the same rounds."""

    name: str
    group: str
    what: str
    unit: str
    less_is_better: bool
    most: float | None
    ours: Side
    others: list[Side]

    @property
    def value(self) -> float:
        """The median of ours."""
        return statistics.median(self.ours.values)

    def shares(self, other: Side) -> list[float]:
        """One for each round: above 1, ours is the better one."""
        pairs = zip(self.ours.values, other.values, strict=True)
        return [theirs / ours if self.less_is_better else ours / theirs for ours, theirs in pairs]

    def share(self, other: Side) -> float:
        return statistics.median(self.shares(other))

    @property
    def missed(self) -> list[str]:
        """Whose aim was not reached; our own name is the limit."""
        missed = [
            other.name
            for other in self.others
            if other.values and other.aim is not None and self.share(other) < other.aim
        ]
        if self.ours.values and self.most is not None and self.value > self.most:
            missed.append(OURS)
        return missed


@attrs.frozen
class Run:
    """All rows of one run, and where it was."""

    made: str  # the day, ISO 8601
    machine: dict[str, str]
    rounds: int
    outcomes: list[Outcome]

    def of(self, name: str) -> Outcome | None:
        return next((outcome for outcome in self.outcomes if outcome.name == name), None)


def write(run: Run, path: Path) -> None:
    """As JSON."""
    path.write_bytes(orjson.dumps(cattrs.unstructure(run), option=orjson.OPT_INDENT_2) + b"\n")


def read(path: Path) -> Run:
    """Raises `ValueError` where the file is none of ours."""
    try:
        return cattrs.structure(orjson.loads(path.read_bytes()), Run)
    except (orjson.JSONDecodeError, cattrs.BaseValidationError, TypeError, KeyError) as problem:
        raise ValueError(f"{path} was not written by --json.") from problem
