"""Connections between the API server and PostgreSQL that are cut in the middle of statements, or slow."""

import asyncio
from random import Random

from scripts.faults.ground import Ground


async def cut(ground: Ground, random: Random) -> None:
    """Each connection ends in the middle of its next statement, new ones too for a while; at last all that there are
    are reset, between statements or in an answer."""
    ground.databases.proxy.cutting = True
    await asyncio.sleep(random.uniform(0.05, 1.5))
    ground.databases.proxy.cutting = False
    ground.databases.proxy.drop()


async def slow(ground: Ground, random: Random) -> None:
    """Each piece of a conversation takes its time."""
    ground.databases.proxy.delay = random.uniform(0.02, 0.2)
    await asyncio.sleep(random.uniform(1, 4))
    ground.databases.proxy.delay = 0.0
