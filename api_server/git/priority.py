"""Which gits give way to all else on this machine: those of background work, archives, the many, and the long.

A git that somebody waits for has the priority of this process: one that gives way while the processors are busy takes
three times as long, and spares others a few milliseconds a request. But more of them than there are processors would
leave too little to the server, for whom everybody waits, and so would some that compute for minutes. What gives way
does so until its end: only root gives a priority back.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Below this process's priority, as nice(1) counts.
STEPS = 10
#: Seconds after which a git gives way, and what it has started.
LONG_SECONDS = 10.0

_MOST_FIRST = len(os.sched_getaffinity(0))
_first = 0


@contextmanager
def turn(*, background: bool) -> Iterator[bool]:
    """Whether a git that runs for the length of the block has to give way from its beginning."""
    global _first  # noqa: PLW0603 (as the processors are all repositories')
    gives_way = background or _first >= _MOST_FIRST
    _first += not gives_way
    try:
        yield gives_way
    finally:
        _first -= not gives_way


def give_way(session: int) -> None:
    """From now on, for a git that leads a session and all that it has started; for nobody where these have ended."""
    with suppress(OSError):
        Path(f"/proc/{session}/autogroup").write_text(
            str(STEPS)
        )  # Linux looks at sessions first: `child_limits`
    with suppress(OSError):
        os.setpriority(os.PRIO_PGRP, session, os.getpriority(os.PRIO_PROCESS, 0) + STEPS)
