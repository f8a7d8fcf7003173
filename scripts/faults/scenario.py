"""The course of a run: load, and one fault after the other; then the load ends, and everything is checked."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from random import Random

import attrs

from scripts.faults import checks
from scripts.faults.environment import Ground
from scripts.faults.faults import inject
from scripts.faults.load import Worker
from scripts.faults.load.edge import Veiled, Versions
from scripts.faults.load.jobs import Jobs, Pipelines, Runner
from scripts.faults.load.objects import LfsObjects, Mirrors
from scripts.faults.load.repositories import ApiWrites, MergeRequests, Pushes

#: What has not succeeded this long after the end of a fault does not heal.
HEAL_SECONDS = 60.0
#: Jobs that nobody knows of go back to the others after a minute.
FINISH_SECONDS = 130.0


@attrs.define
class Made:
    """One fault that was made, and the seconds from its end to the first success of each kind that began later."""

    number: int
    name: str
    recovered: dict[str, float] = attrs.field(factory=dict)
    not_healed: list[str] = attrs.field(factory=list)


class Load:
    """All workers at work, for as long as the block of `working` lasts. They rest `leisure` times as long as they
    would; at the end what a killed server had in hand is waited for with this `patience`, in seconds."""

    def __init__(self, ground: Ground, *, leisure: float = 1.0, patience: float = 90.0) -> None:
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


async def run(
    ground: Ground,
    load: Load,
    faults: Iterable[str],
    random: Random,
    tell: Callable[[str], None],
    pulse: Sequence[str] = (),
) -> list[Made]:
    """Makes these faults under load, then waits for the work to end and looks at everything. Between two faults each
    kind of `pulse` has to succeed once; without it, each that there is."""
    made: list[Made] = []
    async with load.working():
        await _first_round(ground, load)
        for name in faults:
            fault = Made(len(made) + 1, name)
            made.append(fault)
            ground.ledger.fault = fault.number
            await inject(name, ground, random)
            await _recovered(ground, pulse or load.pulse, fault)
            tell(_line(fault))
            await asyncio.sleep(random.uniform(0, 1))
    await checks.check(ground, load.workers, tell)
    return made


async def _first_round(ground: Ground, load: Load) -> None:
    """Everything has succeeded once before anything is broken. Raises RuntimeError where it does not."""
    begun = Made(0, "nothing")
    await _recovered(ground, load.pulse, begun)
    if begun.not_healed:
        raise RuntimeError(f"Without a fault, these do not succeed: {', '.join(begun.not_healed)}.")


async def _recovered(ground: Ground, pulse: Sequence[str], fault: Made) -> None:
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


def _line(fault: Made) -> str:
    if fault.not_healed:
        return f"{fault.number:4} {fault.name:20} NOT HEALED: {', '.join(fault.not_healed)}"
    slowest = max(fault.recovered, key=lambda kind: fault.recovered[kind])
    seconds = fault.recovered[slowest]
    return f"{fault.number:4} {fault.name:20} {seconds:5.1f} s until each kind had succeeded ({slowest})"
