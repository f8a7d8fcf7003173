"""What a git child, and each process that it starts, may use of this machine at most."""

from collections.abc import Sequence

import attrs

from api_server.git.priority import STEPS


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


#: A shell sets them and becomes git: nothing that git starts can be faster than its limits.
_SET = 'ulimit -c 0; ulimit -d "$1" && ulimit -t "$2" && shift 2 && '
_LIMITED = _SET + 'exec "$@"'
#: Likewise its priority, where it is to give way. Linux gives each session, as each git is, the same share of the
#: processor whatever its `nice`, unless it is told by `autogroup` as well.
_GIVING_WAY = _SET + f'{{ echo {STEPS} >/proc/$$/autogroup; }} 2>/dev/null; exec nice -n {STEPS} "$@"'


def limited(command: Sequence[str], *, gives_way: bool) -> list[str]:
    """The command line that runs `command` under the limits; and below this process's priority, if it gives way."""
    script = _GIVING_WAY if gives_way else _LIMITED
    return ["sh", "-c", script, "sh", str(_current.memory // 1024), str(_current.cpu), *command]
