"""A run: load, with or without faults; then the load ends, and everything is checked and reported."""

import asyncio
import contextlib
import json
import operator
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random

import attrs

from scripts.faults import checks
from scripts.faults.client import Ledger
from scripts.faults.edge_load import Versions, Visibility
from scripts.faults.environment import Environment, Worker
from scripts.faults.faults import inject
from scripts.faults.job_load import Jobs, Pipelines, Runner
from scripts.faults.repository_load import ApiWrites, LfsObjects, MergeRequests, Mirrors, Pushes
from scripts.harness.processes import WatchedProcess, retry_until
from scripts.harness.report import Table, counted

#: Seconds after the end of a fault within which each kind has to succeed; otherwise it has not healed.
HEAL_SECONDS = 60.0
#: Seconds to wait for unfinished jobs: a job whose runner does not know it goes to another one after a minute.
FINISH_SECONDS = 130.0


@attrs.define
class InjectedFault:
    """A fault that was made, and the seconds from its end to the first success of each kind that began later."""

    number: int
    name: str
    recovered: dict[str, float] = attrs.field(factory=dict)
    not_healed: list[str] = attrs.field(factory=list)


class Load:
    """All workers, which run for the duration of the block of `working`. Their pauses are multiplied by
    `pause_factor`; `timeout`: seconds to wait at the end for the unfinished work of a killed server."""

    def __init__(self, environment: Environment, *, pause_factor: float = 1.0, timeout: float = 90.0) -> None:
        self._pause_factor = pause_factor
        scratch = environment.folder / "scratch"
        scratch.mkdir()
        self._environment = environment
        self.jobs = Jobs(environment)
        #: These end first, because they create work for the runners.
        self._makers: list[Worker] = [
            ApiWrites(environment, scratch / "api"),
            Pushes(environment, scratch / "push-1", "push-1"),
            Pushes(environment, scratch / "push-2", "push-2"),
            MergeRequests(environment, scratch / "merges", timeout),
            Pipelines(self.jobs),
            Versions(environment),
            Visibility(environment),
            LfsObjects(environment),
            Mirrors(environment, timeout),
        ]
        self._runners: list[Worker] = [Runner(self.jobs, f"s_runner{number}") for number in range(2)]
        self.pulse = [kind for worker in self.workers for kind in worker.pulse]

    @property
    def workers(self) -> Sequence[Worker]:
        return [*self._makers, *self._runners]

    async def prepare(self) -> None:
        for worker in self.workers:
            await worker.prepare()

    async def count_present(self, without: Collection[str] = ()) -> None:
        """Store in the ledger what is there of each kind, so that it can list what is lost and what was done twice."""
        present = self._environment.ledger.present
        for worker in self.workers:
            for kind, counts in (await worker.present()).items():
                if kind not in without:
                    present[kind] = present.get(kind, Counter()) + counts

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run all workers. At the end each finishes its action; runners end when no job is left, or after two
        minutes."""
        resting, idle = asyncio.Event(), asyncio.Event()
        makers = [asyncio.create_task(self._work(worker, resting)) for worker in self._makers]
        runners = [asyncio.create_task(self._work(worker, idle)) for worker in self._runners]
        try:
            yield
            resting.set()
            await asyncio.gather(*makers)
            look = self.jobs.still_unfinished
            for name in await retry_until(look, FINISH_SECONDS, is_done=operator.not_, pause=1):
                self._environment.ledger.find(f"{name} was acknowledged, and its job has not ended")
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
                async with asyncio.timeout(worker.rest * self._pause_factor):
                    await ended.wait()


async def run_faults(
    environment: Environment,
    load: Load,
    faults: Iterable[str],
    random: Random,
    report: Callable[[str], None],
    pulse: Sequence[str] = (),
) -> list[InjectedFault]:
    """Make these faults under load, then wait for the work to end and check everything. Each kind of `pulse` (without
    it, each kind that exists) has to succeed between two faults."""
    injected: list[InjectedFault] = []
    async with load.working():
        await _first_round(environment, load)
        for name in faults:
            fault = InjectedFault(len(injected) + 1, name)
            injected.append(fault)
            environment.ledger.fault = fault.number
            await inject(name, environment, random)
            await _recovered(environment, pulse or load.pulse, fault)
            report(_line(fault))
            await asyncio.sleep(random.uniform(0, 1))
    await _check(environment, load, report)
    return injected


async def _check(environment: Environment, load: Load, report: Callable[[str], None]) -> None:
    report("Checking what is stored ...")
    if not await environment.ready():
        environment.ledger.find("the service is not ready a minute after the last fault")
        return
    await load.count_present()
    await checks.check_all(environment)


async def _first_round(environment: Environment, load: Load) -> None:
    """Wait until each kind has succeeded once. Raise RuntimeError if one does not."""
    undisturbed = InjectedFault(0, "nothing")
    await _recovered(environment, load.pulse, undisturbed)
    if undisturbed.not_healed:
        raise RuntimeError(f"Without a fault, these do not succeed: {', '.join(undisturbed.not_healed)}.")


async def _recovered(environment: Environment, pulse: Sequence[str], fault: InjectedFault) -> None:
    """Wait until an operation of each kind that began after now has succeeded, or a minute is over."""
    fault_end = time.monotonic()
    waiting = set(pulse)
    while waiting and time.monotonic() < fault_end + HEAL_SECONDS:
        await asyncio.sleep(0.02)
        for kind in list(waiting):
            if (ended := environment.ledger.first_success(kind, fault_end)) is not None:
                fault.recovered[kind] = ended - fault_end
                waiting.discard(kind)
    fault.not_healed = sorted(waiting)
    for kind in fault.not_healed:
        environment.ledger.find(f"no {kind} succeeded within {HEAL_SECONDS:.0f} s after {fault.name}")


def _line(fault: InjectedFault) -> str:
    if fault.not_healed:
        return f"{fault.number:4} {fault.name:20} NOT HEALED: {', '.join(fault.not_healed)}"
    slowest = max(fault.recovered, key=lambda kind: fault.recovered[kind])
    seconds = fault.recovered[slowest]
    return f"{fault.number:4} {fault.name:20} {seconds:5.1f} s until each kind had succeeded ({slowest})"


SAMPLE_SECONDS = 30.0
#: Seconds in which caches fill and pools grow; only later samples are compared.
WARM_SECONDS = 60.0
_MIB = 2**20
#: Maximum growth of memory in bytes per minute, and maximum growth of the number of descriptors.
MEMORY_A_MINUTE = 2 * _MIB
DESCRIPTORS = 40


@attrs.frozen
class Sample:
    """A process at one moment, in seconds after the load began."""

    at: float
    memory: int
    descriptors: int


async def soak(environment: Environment, load: Load, seconds: float, report: Callable[[str], None]) -> None:
    """Run the load without faults for this many seconds; memory and descriptors that grow are findings."""
    watched = {kept.name: WatchedProcess(kept.pid) for kept in (*environment.apis, *environment.edges)}
    samples: dict[str, list[Sample]] = {name: [] for name in watched}
    start = time.monotonic()
    async with load.working():
        while time.monotonic() < start + seconds:
            await asyncio.sleep(SAMPLE_SECONDS)
            elapsed = time.monotonic() - start
            for name, process in watched.items():
                usage = process.usage()
                samples[name].append(Sample(elapsed, usage.memory, usage.descriptors))
                memory = f"{usage.memory / _MIB:8.1f} MiB"
                report(f"{elapsed:5.0f} s  {name:7}{memory}{usage.descriptors:6} descriptors")
    for name, process_samples in samples.items():
        for text in not_flat(name, process_samples):
            environment.ledger.find(text)
    await _check(environment, load, report)


def not_flat(name: str, samples: Sequence[Sample]) -> list[str]:
    """Return a sentence for each value that grows in the samples after the first minute."""
    warm = [sample for sample in samples if sample.at >= WARM_SECONDS]
    if len(warm) < 3:
        return []
    slope = (
        statistics.linear_regression([sample.at for sample in warm], [sample.memory for sample in warm]).slope
        * 60
    )
    problems = []
    if slope > MEMORY_A_MINUTE:
        problems.append(f"{name}: memory grows by {slope / _MIB:.1f} MiB a minute")
    third = len(warm) // 3
    before, after = (
        statistics.median(sample.descriptors for sample in part) for part in (warm[:third], warm[-third:])
    )
    if after > before + DESCRIPTORS:
        problems.append(f"{name}: descriptors grew from {before:.0f} to {after:.0f}")
    return problems


TABLE = Table(
    *(("fault", 20), ("times", 7), ("acknowledged", 14), ("unknown", 9), ("lost", 6), ("doubled", 9)),
    *(("not healed", 12), ("findings", 10), ("median s", 10), ("worst s", 9)),
    last="answers",
)
BEFORE = "(no fault yet)"
#: The fields that are shown of a line of a log.
SHOWN_FIELDS = ("timestamp", "level", "logger", "event", "method", "path", "status", "ms", "about")
#: Maximum number of findings of one kind that are shown in full.
SHOWN = 3


@attrs.frozen
class Report:
    """All faults of a run, with everything that was recorded during them."""

    ledger: Ledger
    injected: Sequence[InjectedFault]

    @property
    def failed(self) -> bool:
        """Whether anything was lost, done twice, did not heal, or an answer was not allowed."""
        return bool(self.ledger.findings or self.ledger.lost() or self.ledger.doubled())

    def __str__(self) -> str:
        before = InjectedFault(0, BEFORE)
        groups: dict[str, list[InjectedFault]] = {BEFORE: [before]}
        for fault in self.injected:
            groups.setdefault(fault.name, []).append(fault)
        groups["all"] = [before, *self.injected]
        return "\n".join([TABLE.heading, *(self._row(name, faults) for name, faults in groups.items())])

    def _row(self, name: str, faults: Sequence[InjectedFault]) -> str:
        numbers = {fault.number for fault in faults}
        outcomes = Counter(
            operation.outcome for operation in self.ledger.operations if operation.fault in numbers
        )
        seconds = [max(fault.recovered.values()) for fault in faults if fault.recovered]
        answers: Counter[str] = Counter()
        for (number, outcome), count in self.ledger.answers.items():
            answers[outcome] += count if number in numbers else 0
        return TABLE.row(
            name,
            sum(fault.number > 0 for fault in faults),
            outcomes["acknowledged"],
            outcomes["unknown"],
            sum(operation.fault in numbers for operation in self.ledger.lost()),
            sum(operation.fault in numbers for operation in self.ledger.doubled()),
            sum(bool(fault.not_healed) for fault in faults),
            sum(number in numbers for number, _ in self.ledger.findings),
            f"{statistics.median(seconds):.1f}" if seconds else "",
            f"{max(seconds):.1f}" if seconds else "",
            last=counted(answers, 7),
        )

    def findings(self, logs: Path) -> str:
        """Return the findings with their faults and the log lines of their requests; of a kind with many, only the
        first ones."""
        names: Mapping[int, str] = {0: BEFORE, **{fault.number: fault.name for fault in self.injected}}
        by_kind: dict[str, list[str]] = defaultdict(list)
        for number, text in self.ledger.findings:
            by_kind[_kind(text)].append(f"[{number} {names.get(number, '')}] {text}")
        for problem, operations in (("lost", self.ledger.lost()), ("doubled", self.ledger.doubled())):
            for operation in operations:
                text = f"{problem}: {operation.kind} {operation.identity} ({operation.outcome})"
                by_kind[f"{problem} {operation.kind}"].append(
                    f"[{operation.fault} {names.get(operation.fault, '')}] {text}"
                )
        lines: list[str] = []
        for texts in by_kind.values():
            for text in texts[:SHOWN]:
                lines += [text, *(f"      {line}" for line in _log_lines(logs, text))]
            if len(texts) > SHOWN:
                lines.append(f"    ... and {len(texts) - SHOWN} more of this kind")
        return "\n".join(lines)


def _kind(text: str) -> str:
    """Return the text without its changing parts."""
    return re.sub(r"\d+", "0", text)[:110]


def _log_lines(logs: Path, text: str) -> list[str]:
    """Return the log lines of all processes about the request that is named in the text."""
    request = re.search(r"\((load-\d+)\)", text)
    if request is None:
        return []
    lines_found = []
    for log in sorted(logs.glob("*.log")):
        with log.open(errors="replace") as lines:
            lines_found += [_shortened(line) for line in lines if f'"{request[1]}"' in line]
    return lines_found


def _shortened(line: str) -> str:
    """Return a line of a log with only the end of its traceback: the last places in our code, and the exception."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line.strip()
    trace = entry.pop("exception", "")
    places = re.findall(r'/((?:api_server|storage_edge|common)/[\w/]+\.py)", line (\d+)', trace)
    summary = " ".join(f"{name}={value}" for name, value in entry.items() if name in SHOWN_FIELDS)
    if not trace:
        return summary
    last = re.findall(r"^[A-Za-z_][\w.]*(?:: .*)?$", trace, re.MULTILINE)[-1]
    return f"{summary} exception={last!r} at {' > '.join(f'{file}:{number}' for file, number in places[-3:])}"
