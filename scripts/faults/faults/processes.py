"""Processes that are killed, stopped and frozen; they are started again as an init does."""

import asyncio
import signal
from random import Random

from scripts.faults.ground import Ground


async def kill_server(ground: Ground, random: Random) -> None:
    """kill -9 of an API server; its gits go on for a moment."""
    random.choice(ground.apis).kill()


async def kill_tree(ground: Ground, random: Random) -> None:
    """kill -9 of an API server and everything below it in one moment."""
    random.choice(ground.apis).kill_tree()


async def kill_edge(ground: Ground, random: Random) -> None:
    """kill -9 of an edge."""
    random.choice(ground.edges).kill()


async def kill_postgres(ground: Ground, _: Random) -> None:
    """kill -9 of the postmaster and all of its backends."""
    ground.databases.postgres.kill_tree()


async def stop_postgres(ground: Ground, _: Random) -> None:
    """A fast shutdown, as a package upgrade makes it."""
    ground.databases.postgres.signal(signal.SIGINT)


async def crash_postgres(ground: Ground, _: Random) -> None:
    """An immediate shutdown: clients are told, and the next start recovers."""
    ground.databases.postgres.signal(signal.SIGQUIT)


async def freeze_postgres(ground: Ground, random: Random) -> None:
    """Nothing of PostgreSQL runs for some seconds, but its connections stay."""
    ground.databases.postgres.freeze()
    await asyncio.sleep(random.uniform(1, 6))
    ground.databases.postgres.thaw()


async def kill_pooler(ground: Ground, _: Random) -> None:
    """kill -9 of PgBouncer."""
    assert ground.databases.pooler is not None
    ground.databases.pooler.kept.kill()


async def kill_replica(ground: Ground, _: Random) -> None:
    """kill -9 of the standby and all of its processes. Commits wait for it until it has caught up."""
    standby = ground.databases.replication.standby
    assert standby is not None
    standby.kept.kill_tree()


async def promote_replica(ground: Ground, _: Random) -> None:
    """kill -9 of the primary, which never comes back; the standby takes its place, and gets one of its own."""
    await ground.databases.fail_over()
