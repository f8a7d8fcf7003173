"""The faults: each coroutine in `FAULTS` breaks something, holds it broken for a while, and mends it.

The clock of the recovery begins when it returns. Several are made at the same moment by a name such as
`kill-tree+full-edge`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import attrs

from scripts.faults.faults import clock, connections, disk, object_store, outside, processes
from scripts.faults.ground import Ground
from scripts.faults.shapes import ALONE, FLEET, WITH_S3, Shape

Inject = Callable[[Ground, Random], Awaitable[None]]


@attrs.frozen
class Fault:
    inject: Inject
    #: Of the service that it is made on, where the usual one does not do.
    shape: Shape = ALONE
    #: Says why it cannot be made on this ground; None where it can.
    hindrance: Callable[[Ground], str | None] = lambda _: None


FAULTS: dict[str, Fault] = {
    "kill-server": Fault(processes.kill_server),
    "kill-tree": Fault(processes.kill_tree),
    "kill-edge": Fault(processes.kill_edge),
    "kill-postgresql": Fault(processes.kill_postgres),
    "stop-postgresql": Fault(processes.stop_postgres),
    "crash-postgresql": Fault(processes.crash_postgres),
    "freeze-postgresql": Fault(processes.freeze_postgres),
    "full-postgresql": Fault(disk.full_postgres, hindrance=disk.hindrance),
    "full-data": Fault(disk.full_data, hindrance=disk.hindrance),
    "full-edge": Fault(disk.full_edge, hindrance=disk.hindrance),
    "cut-connections": Fault(connections.cut),
    "slow-database": Fault(connections.slow),
    "bad-receivers": Fault(outside.bad_receivers),
    "bad-mirror-targets": Fault(outside.bad_targets),
    "bad-names": Fault(outside.bad_names, hindrance=outside.no_names),
    "clock-jumps": Fault(clock.jump, hindrance=clock.hindrance),
    "slow-s3": Fault(object_store.slow, shape=WITH_S3),
    "lost-s3": Fault(object_store.gone, shape=WITH_S3),
    "refusing-s3": Fault(object_store.refuses, shape=WITH_S3),
    "kill-pgbouncer": Fault(processes.kill_pooler, shape=FLEET),
    "kill-replica": Fault(processes.kill_replica, shape=FLEET),
    "promote-replica": Fault(processes.promote_replica, shape=FLEET),
}


def parts(name: str) -> list[str]:
    """The faults that a name stands for. Raises ValueError with one sentence where there is none of that name."""
    found = name.split("+")
    if unknown := [part for part in found if part not in FAULTS]:
        raise ValueError(f"There is no fault {', '.join(unknown)}; there are {', '.join(FAULTS)}.")
    return found


def shape(name: str) -> Shape:
    """Of the smallest service that all of it can be made on. Raises ValueError as `parts`."""
    return max((FAULTS[part].shape for part in parts(name)), key=[ALONE, WITH_S3, FLEET].index)


def hindrance(name: str, ground: Ground) -> str | None:
    """Why this cannot be made on this ground; None where it can."""
    return next(filter(None, (FAULTS[part].hindrance(ground) for part in parts(name))), None)


async def inject(name: str, ground: Ground, random: Random) -> None:
    await asyncio.gather(*(FAULTS[part].inject(ground, random) for part in parts(name)))
