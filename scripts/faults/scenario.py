"""A run: load, and one fault after the other or none; then the load ends, everything is checked and reported."""

import asyncio
import contextlib
import json
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random

import attrs

from scripts.faults import checks
from scripts.faults.client import Ledger, Worker
from scripts.faults.edge_load import Veiled, Versions
from scripts.faults.environment import Environment
from scripts.faults.faults import inject
from scripts.faults.job_load import Jobs, Pipelines, Runner
from scripts.faults.repository_load import ApiWrites, LfsObjects, MergeRequests, Mirrors, Pushes
from scripts.harness.processes import WatchedProcess, resident_bytes

#: What has not succeeded this long after the end of a fault does not heal.
HEAL_SECONDS = 60.0
#: Jobs that nobody knows of go back to the others after a minute.
FINISH_SECONDS = 130.0


@attrs.define
class InjectedFault:
    """One fault that was made, and the seconds from its end to the first success of each kind that began later."""

    number: int
    name: str
    recovered: dict[str, float] = attrs.field(factory=dict)
    not_healed: list[str] = attrs.field(factory=list)


class Load:
    """All workers at work, for as long as the block of `working` lasts. They rest `leisure` times as long as they
    would; at the end what a killed server had in hand is waited for with this `patience`, in seconds."""

    def __init__(self, ground: Environment, *, leisure: float = 1.0, patience: float = 90.0) -> None:
        self._leisure = leisure
        scratch = ground.folder / "scratch"
        scratch.mkdir()
        self._ground = ground
        self.jobs = Jobs(ground)
        #: What makes work for others comes to rest first.
        self._makers: list[Worker] = [
            ApiWrites(ground, scratch / "api"),
            Pushes(ground, scratch / "push-1", "push-1"),
            Pushes(ground, scratch / "push-2", "push-2"),
            MergeRequests(ground, scratch / "merges", patience),
            Pipelines(self.jobs),
            Versions(ground),
            Veiled(ground),
            LfsObjects(ground),
            Mirrors(ground, patience),
        ]
        self._runners: list[Worker] = [Runner(self.jobs, f"s_runner{number}") for number in range(2)]
        self.pulse = [kind for worker in self.workers for kind in worker.pulse]

    @property
    def workers(self) -> Sequence[Worker]:
        return [*self._makers, *self._runners]

    async def prepare(self) -> None:
        for worker in self.workers:
            await worker.prepare()

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """At its end each finishes what it does; the runners when no job is left, or after two minutes."""
        resting, idle = asyncio.Event(), asyncio.Event()
        makers = [asyncio.create_task(self._work(worker, resting)) for worker in self._makers]
        runners = [asyncio.create_task(self._work(worker, idle)) for worker in self._runners]
        try:
            yield
            resting.set()
            await asyncio.gather(*makers)
            deadline = time.monotonic() + FINISH_SECONDS
            while left := self.jobs.unfinished():
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(1)
                await self.jobs.look_for_failures()
            for name in left:
                self._ground.ledger.find(f"{name} was acknowledged, and its job has not ended")
            idle.set()
            await asyncio.gather(*runners)
        finally:
            for task in (*makers, *runners):
                task.cancel()
            await asyncio.gather(*makers, *runners, return_exceptions=True)

    async def _work(self, worker: Worker, ended: asyncio.Event) -> None:
        while not ended.is_set():
            await worker.once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(worker.rest * self._leisure):
                    await ended.wait()


async def run_faults(
    ground: Environment,
    load: Load,
    faults: Iterable[str],
    random: Random,
    tell: Callable[[str], None],
    pulse: Sequence[str] = (),
) -> list[InjectedFault]:
    """Makes these faults under load, then waits for the work to end and looks at everything. Between two faults each
    kind of `pulse` has to succeed once; without it, each that there is."""
    made: list[InjectedFault] = []
    async with load.working():
        await _first_round(ground, load)
        for name in faults:
            fault = InjectedFault(len(made) + 1, name)
            made.append(fault)
            ground.ledger.fault = fault.number
            await inject(name, ground, random)
            await _recovered(ground, pulse or load.pulse, fault)
            tell(_line(fault))
            await asyncio.sleep(random.uniform(0, 1))
    await checks.check(ground, load.workers, tell)
    return made


async def _first_round(ground: Environment, load: Load) -> None:
    """Everything has succeeded once before anything is broken. Raises RuntimeError where it does not."""
    begun = InjectedFault(0, "nothing")
    await _recovered(ground, load.pulse, begun)
    if begun.not_healed:
        raise RuntimeError(f"Without a fault, these do not succeed: {', '.join(begun.not_healed)}.")


async def _recovered(ground: Environment, pulse: Sequence[str], fault: InjectedFault) -> None:
    """Until one of each kind has succeeded that began after now, or a minute is over."""
    over = time.monotonic()
    waiting = set(pulse)
    while waiting and time.monotonic() < over + HEAL_SECONDS:
        await asyncio.sleep(0.02)
        for kind in list(waiting):
            if (ended := ground.ledger.first_success(kind, over)) is not None:
                fault.recovered[kind] = ended - over
                waiting.discard(kind)
    fault.not_healed = sorted(waiting)
    for kind in fault.not_healed:
        ground.ledger.find(f"no {kind} succeeded within {HEAL_SECONDS:.0f} s after {fault.name}")


def _line(fault: InjectedFault) -> str:
    if fault.not_healed:
        return f"{fault.number:4} {fault.name:20} NOT HEALED: {', '.join(fault.not_healed)}"
    slowest = max(fault.recovered, key=lambda kind: fault.recovered[kind])
    seconds = fault.recovered[slowest]
    return f"{fault.number:4} {fault.name:20} {seconds:5.1f} s until each kind had succeeded ({slowest})"


SAMPLE_SECONDS = 30.0
#: Caches fill and pools grow for as long; what comes later is looked at.
WARM_SECONDS = 60.0
_MIB = 2**20
#: What may be added a minute, and what descriptors may differ by from one sample to another.
MEMORY_A_MINUTE = 2 * _MIB
DESCRIPTORS = 40


@attrs.frozen
class Sample:
    """A process at one moment, seconds after the load began."""

    at: float
    memory: int
    descriptors: int


async def soak(ground: Environment, load: Load, seconds: float, tell: Callable[[str], None]) -> None:
    """What is not flat is a finding."""
    watched = {kept.name: WatchedProcess(kept.pid) for kept in (*ground.apis, *ground.edges)}
    samples: dict[str, list[Sample]] = {name: [] for name in watched}
    begun = time.monotonic()
    async with load.working():
        while time.monotonic() < begun + seconds:
            await asyncio.sleep(SAMPLE_SECONDS)
            at = time.monotonic() - begun
            for name, process in watched.items():
                sample = Sample(at, resident_bytes(process.pid), process.held().descriptors)
                samples[name].append(sample)
                tell(
                    f"{at:5.0f} s  {name:7}{sample.memory / _MIB:8.1f} MiB{sample.descriptors:6} descriptors"
                )
    for name, taken in samples.items():
        for text in not_flat(name, taken):
            ground.ledger.find(text)
    await checks.check(ground, load.workers, tell)


def not_flat(name: str, samples: Sequence[Sample]) -> list[str]:
    """What grows, in words, of the samples after the first minute."""
    warm = [sample for sample in samples if sample.at >= WARM_SECONDS]
    if len(warm) < 3:
        return []
    slope = statistics.linear_regression([one.at for one in warm], [one.memory for one in warm]).slope * 60
    found = []
    if slope > MEMORY_A_MINUTE:
        found.append(f"{name}: memory grows by {slope / _MIB:.1f} MiB a minute")
    third = len(warm) // 3
    before, after = (
        statistics.median(one.descriptors for one in part) for part in (warm[:third], warm[-third:])
    )
    if after > before + DESCRIPTORS:
        found.append(f"{name}: descriptors grew from {before:.0f} to {after:.0f}")
    return found


HEADING = (
    f"{'fault':20}{'times':>7}{'acknowledged':>14}{'unknown':>9}{'lost':>6}{'doubled':>9}{'not healed':>12}"
    f"{'findings':>10}{'median s':>10}{'worst s':>9}  answers"
)
BEFORE = "(no fault yet)"
#: What is shown of a line of a log.
SHOWN_FIELDS = ("timestamp", "level", "logger", "event", "method", "path", "status", "ms", "about")
#: So many findings of one kind are shown whole.
SHOWN = 3


@attrs.frozen
class Report:
    """All faults of a run, with everything that was recorded while they were made."""

    ledger: Ledger
    made: Sequence[InjectedFault]

    @property
    def failed(self) -> bool:
        """Whether anything was lost, done twice, not healed, or said that may not be said."""
        return bool(self.ledger.findings or self.ledger.lost() or self.ledger.doubled())

    def __str__(self) -> str:
        names = list(dict.fromkeys(fault.name for fault in self.made))
        rows = [self._row(name, [fault for fault in self.made if fault.name == name]) for name in names]
        return "\n".join(
            [
                HEADING,
                self._row(BEFORE, [InjectedFault(0, BEFORE)]),
                *rows,
                self._row("all", [InjectedFault(0, BEFORE), *self.made]),
            ]
        )

    def _row(self, name: str, faults: Sequence[InjectedFault]) -> str:
        numbers = {fault.number for fault in faults}
        mine = [one for one in self.ledger.operations if one.fault in numbers]
        outcomes = Counter(one.outcome for one in mine)
        seconds = [max(fault.recovered.values()) for fault in faults if fault.recovered]
        answers: Counter[str] = Counter()
        for (fault, what), count in self.ledger.answers.items():
            answers[what] += count if fault in numbers else 0
        told = ", ".join(f"{count} x {what}" for what, count in answers.most_common(7) if count)
        median = f"{statistics.median(seconds):.1f}" if seconds else ""
        worst = f"{max(seconds):.1f}" if seconds else ""
        return (
            f"{name:20}{sum(fault.number > 0 for fault in faults):7}"
            f"{outcomes['acknowledged']:14}{outcomes['unknown']:9}"
            f"{sum(one.fault in numbers for one in self.ledger.lost()):6}"
            f"{sum(one.fault in numbers for one in self.ledger.doubled()):9}"
            f"{sum(bool(fault.not_healed) for fault in faults):12}"
            f"{sum(number in numbers for number, _ in self.ledger.findings):10}{median:>10}{worst:>9}  {told}"
        )

    def findings(self, logs: Path) -> str:
        """Each finding with its fault; of many of one kind, the first ones; with the log lines of their requests."""
        names: Mapping[int, str] = {0: BEFORE, **{fault.number: fault.name for fault in self.made}}
        by_kind: dict[str, list[str]] = defaultdict(list)
        for number, text in self.ledger.findings:
            by_kind[_kind(text)].append(f"[{number} {names.get(number, '')}] {text}")
        for what, operations in (("lost", self.ledger.lost()), ("doubled", self.ledger.doubled())):
            for one in operations:
                where = f"[{one.fault} {names.get(one.fault, '')}]"
                by_kind[f"{what} {one.kind}"].append(
                    f"{where} {what}: {one.kind} {one.identity} ({one.outcome})"
                )
        lines: list[str] = []
        for texts in by_kind.values():
            for text in texts[:SHOWN]:
                lines += [text, *(f"      {line}" for line in _log_lines(logs, text))]
            if len(texts) > SHOWN:
                lines.append(f"    ... and {len(texts) - SHOWN} more of this kind")
        return "\n".join(lines)


def _kind(text: str) -> str:
    """The text without what varies."""
    return re.sub(r"\d+", "0", text)[:110]


def _log_lines(logs: Path, text: str) -> list[str]:
    """What the processes said of the request that is named in the text."""
    named = re.search(r"\((load-\d+)\)", text)
    if named is None:
        return []
    found = []
    for log in sorted(logs.glob("*.log")):
        with log.open(errors="replace") as lines:
            found += [_shortened(line) for line in lines if f'"{named[1]}"' in line]
    return found


def _shortened(line: str) -> str:
    """A line of a log with the end of its traceback only: the last places in our code, and the exception."""
    try:
        said = json.loads(line)
    except ValueError:
        return line.strip()
    trace = said.pop("exception", "")
    places = re.findall(r'/((?:api_server|storage_edge|common)/[\w/]+\.py)", line (\d+)', trace)
    shown = " ".join(f"{name}={value}" for name, value in said.items() if name in SHOWN_FIELDS)
    if not trace:
        return shown
    last = re.findall(r"^[A-Za-z_][\w.]*(?:: .*)?$", trace, re.MULTILINE)[-1]
    return f"{shown} exception={last!r} at {' > '.join(f'{file}:{number}' for file, number in places[-3:])}"
