"""Disks that are full."""

import asyncio
import time
from pathlib import Path
from random import Random

from scripts.faults import disks
from scripts.faults.ground import Ground

TOP_UP_SECONDS = 0.2


def hindrance(_: Ground) -> str | None:
    return None if disks.can_mount() else "needs root, to mount small disks"


async def full_postgres(ground: Ground, random: Random) -> None:
    """PostgreSQL's disk, its write-ahead log included: it panics and cannot come up before there is room."""
    await _full(ground.databases.folder, random.uniform(1, 6))


async def full_data(ground: Ground, random: Random) -> None:
    """The disk of repositories and objects."""
    await _full(ground.data.part("api"), random.uniform(1, 6))


async def full_edge(ground: Ground, random: Random) -> None:
    """An edge's disk: index and bodies. Sometimes it has to start like that."""
    edge, seconds = random.choice(ground.edges), random.uniform(1, 6)
    if random.random() < 0.3:
        edge.kill()
    await _full(ground.data.part(edge.name), seconds)


async def _full(folder: Path, seconds: float) -> None:
    """Keeps it full: what is freed meanwhile is taken too."""
    until = time.monotonic() + seconds
    with disks.full(folder):
        while time.monotonic() < until:
            await asyncio.sleep(TOP_UP_SECONDS)
            await asyncio.to_thread(disks.fill, folder / disks.FILLER)
