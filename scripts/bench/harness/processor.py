"""The processor's time that programs have used, with all that they have started."""

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def seconds(pids: Iterable[int]) -> float:
    """Of these processes and those below them that still run, and of those that they have waited for."""
    return sum(_ticks(process) for pid in pids for process in _tree(pid)) / _TICKS


def machine() -> float:
    """Of all that runs on this machine, since it was started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _waits, interrupts, soft, stolen = (int(field) for field in fields[:8])
    return (user + nice + system + interrupts + soft + stolen) / _TICKS


def _tree(pid: int) -> list[int]:
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _tree(int(child))
    except OSError:  # it has just ended
        pass
    return found


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(
        int(field) for field in fields[11:15]
    )  # user, system, and both of children that were waited for
