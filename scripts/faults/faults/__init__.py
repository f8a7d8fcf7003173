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

Inject = Callable[[Ground, Random], Awaitable[None]]


@attrs.frozen
class Fault:
    inject: Inject
    #: Says why it cannot be made on this ground; None where it can.
    hindrance: Callable[[Ground], str | None] = lambda _: None


#: Those of a service that keeps its objects in S3.
S3: dict[str, Fault] = {
    "slow-s3": Fault(object_store.slow, object_store.hindrance),
    "lost-s3": Fault(object_store.gone, object_store.hindrance),
    "refusing-s3": Fault(object_store.refuses, object_store.hindrance),
}

FAULTS: dict[str, Fault] = {
    "kill-server": Fault(processes.kill_server),
    "kill-tree": Fault(processes.kill_tree),
    "kill-edge": Fault(processes.kill_edge),
    "kill-postgresql": Fault(processes.kill_postgres),
    "stop-postgresql": Fault(processes.stop_postgres),
    "crash-postgresql": Fault(processes.crash_postgres),
    "freeze-postgresql": Fault(processes.freeze_postgres),
    "full-postgresql": Fault(disk.full_postgres, disk.hindrance),
    "full-data": Fault(disk.full_data, disk.hindrance),
    "full-edge": Fault(disk.full_edge, disk.hindrance),
    "cut-connections": Fault(connections.cut),
    "slow-database": Fault(connections.slow),
    "bad-receivers": Fault(outside.bad_receivers),
    "bad-mirror-targets": Fault(outside.bad_targets),
    "bad-names": Fault(outside.bad_names, outside.no_names),
    "clock-jumps": Fault(clock.jump, clock.hindrance),
    **S3,
}


def parts(name: str) -> list[str]:
    """The faults that a name stands for. Raises ValueError with one sentence where there is none of that name."""
    found = name.split("+")
    if unknown := [part for part in found if part not in FAULTS]:
        raise ValueError(f"There is no fault {', '.join(unknown)}; there are {', '.join(FAULTS)}.")
    return found


def hindrance(name: str, ground: Ground) -> str | None:
    """Why this cannot be made on this ground; None where it can."""
    return next(filter(None, (FAULTS[part].hindrance(ground) for part in parts(name))), None)


async def inject(name: str, ground: Ground, random: Random) -> None:
    await asyncio.gather(*(FAULTS[part].inject(ground, random) for part in parts(name)))
