"""What a git child, and each process that it starts, may use of this machine at most."""

from collections.abc import Sequence

import attrs


@attrs.frozen
class ChildLimits:
    """`memory` in bytes (of data: what is mapped from files does not count), `cpu` in seconds."""

    memory: int = 512 * 2**20
    cpu: int = 900


_current = ChildLimits()


def set_limits(limits: ChildLimits) -> None:
    """From now on, for all git children: they are this process's, whoever asked for them."""
    global _current  # noqa: PLW0603 (as rlimits are the process's)
    _current = limits


#: A shell sets them and becomes git: nothing that git starts can be faster than its limits. And all of it gives way to
#: this process, for which everybody waits. Linux gives each session, as each git is, the same share of the processor
#: whatever its `nice`, unless it is told by `autogroup` as well.
_LIMITED = (
    'ulimit -c 0; ulimit -d "$1" && ulimit -t "$2" && shift 2 && { echo 10 >/proc/$$/autogroup; } 2>/dev/null; '
    'exec nice -n 10 "$@"'
)


def limited(command: Sequence[str]) -> list[str]:
    """The command line that runs `command` under the limits."""
    return ["sh", "-c", _LIMITED, "sh", str(_current.memory // 1024), str(_current.cpu), *command]
