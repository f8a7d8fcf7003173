"""The load alone, for minutes: memory and descriptors of both servers stay where they are."""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence

import attrs

from scripts.abuse.watching import Watched, resident
from scripts.faults import checks
from scripts.faults.environment import Ground
from scripts.faults.scenario import Load

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


async def soaked(ground: Ground, load: Load, seconds: float, tell: Callable[[str], None]) -> None:
    """What is not flat is a finding."""
    watched = {kept.name: Watched(kept.pid) for kept in (*ground.apis, *ground.edges)}
    samples: dict[str, list[Sample]] = {name: [] for name in watched}
    begun = time.monotonic()
    async with load.working():
        while time.monotonic() < begun + seconds:
            await asyncio.sleep(SAMPLE_SECONDS)
            at = time.monotonic() - begun
            for name, process in watched.items():
                sample = Sample(at, resident(process.pid), process.held().descriptors)
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
