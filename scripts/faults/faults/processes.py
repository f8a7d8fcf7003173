"""Processes that are killed, stopped and frozen; they are started again as an init does."""

import asyncio
import signal
from random import Random

from scripts.faults.ground import Ground


async def kill_server(ground: Ground, _: Random) -> None:
    """kill -9 of the API server; its gits go on for a moment."""
    ground.api.kill()


async def kill_tree(ground: Ground, _: Random) -> None:
    """kill -9 of the API server and everything below it in one moment."""
    ground.api.kill_tree()


async def kill_edge(ground: Ground, _: Random) -> None:
    """kill -9 of the edge."""
    ground.edge.kill()


async def kill_postgres(ground: Ground, _: Random) -> None:
    """kill -9 of the postmaster and all of its backends."""
    ground.postgres.kill_tree()


async def stop_postgres(ground: Ground, _: Random) -> None:
    """A fast shutdown, as a package upgrade makes it."""
    ground.postgres.signal(signal.SIGINT)


async def crash_postgres(ground: Ground, _: Random) -> None:
    """An immediate shutdown: clients are told, and the next start recovers."""
    ground.postgres.signal(signal.SIGQUIT)


async def freeze_postgres(ground: Ground, random: Random) -> None:
    """Nothing of PostgreSQL runs for some seconds, but its connections stay."""
    ground.postgres.freeze()
    await asyncio.sleep(random.uniform(1, 6))
    ground.postgres.thaw()
