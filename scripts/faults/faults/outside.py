"""Receivers and mirror targets that misbehave, and names that cannot be trusted."""

import asyncio
from random import Random

from scripts.faults.ground import Ground
from scripts.faults.names import NOBODY
from scripts.faults.outside import MISBEHAVIOUR


async def bad_receivers(ground: Ground, random: Random) -> None:
    await _misbehave(ground, random, "receiver")


async def bad_targets(ground: Ground, random: Random) -> None:
    await _misbehave(ground, random, "target")


def no_names(ground: Ground) -> str | None:
    return None if ground.names else "needs root and unshare, to give the server a name server of its own"


async def bad_names(ground: Ground, random: Random) -> None:
    """The name server is slow, says nothing, fails, or names an address on which nobody listens."""
    assert ground.names is not None
    how = random.choice(
        ({"delay": random.uniform(0.5, 3)}, {"silent": True}, {"failing": True}, {"says": NOBODY})
    )
    before = {name: getattr(ground.names, name) for name in how}
    for name, value in how.items():
        setattr(ground.names, name, value)
    await asyncio.sleep(random.uniform(1, 6))
    for name, value in before.items():
        setattr(ground.names, name, value)


async def _misbehave(ground: Ground, random: Random, part: str) -> None:
    with ground.outside.misbehaving(part, random.choice(sorted(MISBEHAVIOUR))):
        await asyncio.sleep(random.uniform(1, 4))
