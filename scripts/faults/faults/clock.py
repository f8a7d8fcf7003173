"""The wall clock of an API server jumps (libfaketime); the monotonic one goes on, as when somebody sets the time.

The edge's does not: under libfaketime 0.9.10 Python's `time.sleep` fails, with which the edge waits for its locks. A
child that is forked while another thread holds a lock of libfaketime's waits for it for ever, and the server for the
child. That is no fault of the service's, which therefore ends with all that is below it when the fault is over.
"""

import asyncio
from pathlib import Path
from random import Random

from scripts.faults.ground import Ground

JUMP_SECONDS = 45


def library() -> Path | None:
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


def hindrance(_: Ground) -> str | None:
    return None if library() else "needs libfaketime (Debian: apt-get install libfaketime)"


async def jump(ground: Ground, random: Random) -> None:
    """One of them is started anew under a clock that jumps to and fro, and ends where it should be."""
    server = random.choice(ground.apis)
    shift = ground.folder / "clock"
    _set(shift, 0)
    before = dict(server.environment)
    server.environment |= {
        "LD_PRELOAD": str(library()),
        "FAKETIME_TIMESTAMP_FILE": str(shift),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    server.kill()
    try:
        await asyncio.sleep(0.5)
        await ground.ready()
        for seconds in random.sample((JUMP_SECONDS, -JUMP_SECONDS), 2):
            _set(shift, seconds)
            await asyncio.sleep(random.uniform(0.5, 4))
        _set(shift, 0)
        await asyncio.sleep(1.0)  # for as long as the old time is remembered
    finally:
        server.environment = before
        server.kill_tree()


def _set(file: Path, seconds: int) -> None:
    scratch = file.with_suffix(".new")
    scratch.write_text(f"{seconds:+d}\n")
    scratch.chmod(0o644)
    scratch.replace(file)
