"""Receivers and mirror targets that misbehave."""

import asyncio
from random import Random

from scripts.faults.ground import Ground
from scripts.faults.outside import MISBEHAVIOUR


async def bad_receivers(ground: Ground, random: Random) -> None:
    await _misbehave(ground, random, "receiver")


async def bad_targets(ground: Ground, random: Random) -> None:
    await _misbehave(ground, random, "target")


async def _misbehave(ground: Ground, random: Random, part: str) -> None:
    with ground.outside.misbehaving(part, random.choice(sorted(MISBEHAVIOUR))):
        await asyncio.sleep(random.uniform(1, 4))
