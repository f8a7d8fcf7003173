"""A run of the bench: the size of its data, its rows, which are measured in turn, and the results."""

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import attrs
import cattrs
import orjson

T = TypeVar("T")


@attrs.frozen
class Size:
    """Numbers of rows, and the length and number of rounds."""

    jobs: int = 200_000
    events: int = 1_000_000
    few_events: int = 10_000
    chained_events: int = 50_000
    refs: int = 5_000
    projects: int = 10_000
    deliveries: int = 3_000
    handed_out: int = 200
    resets: int = 400
    crowd: int = 1_000
    large_repository: int = 200_000_000  # bytes
    large_object: bool = True  # 64 MiB and 50 MB through the edge
    seconds: float = 0.6
    warm_up: float = 0.25  # seconds before the first round, which fill caches, plans and connections
    rounds: int = 3


FULL = Size()
#: The size with which tests check that each row can be measured.
TINY = Size(
    jobs=300,
    events=400,
    few_events=200,
    chained_events=300,
    refs=20,
    projects=30,
    deliveries=20,
    handed_out=5,
    resets=2,
    crowd=5,
    large_repository=6_000_000,
    large_object=False,
    seconds=0.05,
    warm_up=0,
    rounds=1,
)


class Bench(ExitStack):
    """The context of a run (`with Bench(FULL) as bench:`). Its end ends everything that rows have set up."""

    def __init__(self, size: Size = FULL) -> None:
        super().__init__()
        self.size = size
        self.folder = Path(self.enter_context(TemporaryDirectory(prefix="forgelet-bench-", dir="/tmp")))
        self._used: dict[object, Any] = {}
        self._folders = 0

    def use(self, make: Callable[["Bench"], AbstractContextManager[T]]) -> T:
        """Return what `make` yields. All callers get the same object, which ends with the bench; if `make` fails, all
        callers get its exception."""
        if make not in self._used:
            try:
                self._used[make] = self.enter_context(make(self))
            except Exception as problem:
                self._used[make] = problem
        resource = self._used[make]
        if isinstance(resource, Exception):
            raise resource
        return resource  # type: ignore[no-any-return]

    def new_folder(self) -> Path:
        """Create an empty folder, which is deleted with the bench."""
        self._folders += 1
        folder = self.folder / str(self._folders)
        folder.mkdir()
        return folder


#: A function for `Bench.use` that sets up what rows share.
Make = Callable[[Bench], AbstractContextManager[T]]


class NotMeasured(Exception):
    """The error that a program to compare with is missing on this machine; its text is one sentence that names it."""


@attrs.frozen
class Sample:
    """One round: a `value` in the row's unit, and the microseconds of the processor that the server used for a unit of
    work, if known."""

    value: float
    cpu: float | None = None


#: A function that measures for about this many seconds. Functions that measure the time of fixed work ignore them.
Measure = Callable[[float], Sample]
#: Functions by the names of sides, ours first under OURS; for a side that cannot be measured, the reason.
Sides = Mapping[str, Measure | NotMeasured]

OURS = "forgelet"


def side(make: Callable[[], Measure]) -> Measure | NotMeasured:
    """Return the result of `make`, or the reason why the side cannot be measured."""
    try:
        return make()
    except NotMeasured as reason:
        return reason


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds that the work takes by the clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@attrs.frozen
class Row:
    """A row of the table. `aims` are the lowest acceptable shares of the other sides' figures, by their names; `most`
    is the maximum of our own value. A share is ours / theirs if more is better, and theirs / ours if less is better."""

    name: str
    what: str
    sides: Callable[[Bench], Sides]
    unit: str = "requests/s"
    aims: Mapping[str, float] = attrs.field(factory=dict)
    most: float | None = None
    less_is_better: bool = False
    #: Maximum number of rounds of a row that takes long.
    most_rounds: int | None = None
    warmed_up: bool = True


@attrs.frozen
class Side:
    """The figures of one program, a value for each round; without values, `reason` says why."""

    name: str
    values: list[float] = attrs.field(factory=list)
    cpu: list[float] = attrs.field(factory=list)  # microseconds a unit of work
    aim: float | None = None
    reason: str = ""


@attrs.frozen
class Outcome:
    """The result of a row: our side, and the others in the same rounds."""

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
        """The median of our rounds."""
        return statistics.median(self.ours.values)

    def shares(self, other: Side) -> list[float]:
        """Return a share for each round; above 1, our side is better."""
        pairs = zip(self.ours.values, other.values, strict=True)
        return [theirs / ours if self.less_is_better else ours / theirs for ours, theirs in pairs]

    def share(self, other: Side) -> float:
        return statistics.median(self.shares(other))

    @property
    def missed(self) -> list[str]:
        """The sides whose aims were missed; our own name stands for the limit."""
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
    """All rows of one run, its date and its machine."""

    made: str  # the day, ISO 8601
    machine: dict[str, str]
    rounds: int
    outcomes: list[Outcome]

    def of(self, name: str) -> Outcome | None:
        return next((outcome for outcome in self.outcomes if outcome.name == name), None)

    def by_group(self) -> dict[str, list[Outcome]]:
        """Return the rows by the titles of their groups."""
        groups: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            groups.setdefault(outcome.group, []).append(outcome)
        return groups


def write_run(run: Run, path: Path) -> None:
    """Write the run as JSON."""
    path.write_bytes(orjson.dumps(cattrs.unstructure(run), option=orjson.OPT_INDENT_2) + b"\n")


def read_run(path: Path) -> Run:
    """Read a run that `write_run` has written. Raise `ValueError` if the file is another one."""
    try:
        return cattrs.structure(orjson.loads(path.read_bytes()), Run)
    except (orjson.JSONDecodeError, cattrs.BaseValidationError, TypeError, KeyError) as problem:
        raise ValueError(f"{path} was not written by --json.") from problem


def measure_row(row: Row, group: str, bench: Bench) -> Outcome:
    """Measure a row; each round begins with another side than the one before it. If the row fails, the outcome has the
    reason, and the other rows are still measured."""
    sides: Sides = dict.fromkeys((OURS, *row.aims), NotMeasured())
    measured: dict[str, Side] = {}
    problem = ""
    try:
        sides = row.sides(bench)
        measured = _rounds(row, sides, bench)
    except NotMeasured as reason:
        problem = str(reason)
    except Exception as failure:
        problem = f"it failed: {(str(failure).splitlines() or [type(failure).__name__])[0]}"
    ours, *others = (
        measured.get(name)
        or Side(name, aim=row.aims.get(name), reason=(isinstance(side, NotMeasured) and str(side)) or problem)
        for name, side in sides.items()
    )
    return Outcome(row.name, group, row.what, row.unit, row.less_is_better, row.most, ours, others)


def _rounds(row: Row, sides: Sides, bench: Bench) -> dict[str, Side]:
    measures = {name: side for name, side in sides.items() if not isinstance(side, NotMeasured)}
    if row.warmed_up and bench.size.warm_up:
        for measure in measures.values():
            measure(bench.size.warm_up)
    measured = {name: Side(name, aim=row.aims.get(name)) for name in measures}
    for number in range(min(bench.size.rounds, row.most_rounds or bench.size.rounds)):
        for name in list(measures)[:: -1 if number % 2 else 1]:
            sample = measures[name](bench.size.seconds)
            measured[name].values.append(sample.value)
            if sample.cpu is not None:
                measured[name].cpu.append(sample.cpu)
    return measured
