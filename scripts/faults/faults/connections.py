"""Connections between the API server and PostgreSQL that are cut in the middle of statements, or slow."""

import asyncio
from random import Random

from scripts.faults.ground import Ground


async def cut(ground: Ground, random: Random) -> None:
    """Each connection ends in the middle of its next statement, new ones too for a while; at last all that there are
    are reset, between statements or in an answer."""
    ground.database.cutting = True
    await asyncio.sleep(random.uniform(0.05, 1.5))
    ground.database.cutting = False
    ground.database.drop()


async def slow(ground: Ground, random: Random) -> None:
    """Each piece of a conversation takes its time."""
    ground.database.delay = random.uniform(0.02, 0.2)
    await asyncio.sleep(random.uniform(1, 4))
    ground.database.delay = 0.0
