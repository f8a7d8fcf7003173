"""Ends what git leaves running when this process is killed and cannot end it any more."""

import functools
import os
import uuid
from collections.abc import Mapping

#: Git and all that it starts inherit this variable, by which they are found.
_VARIABLE = "FORGELET_GIT_OF"
#: git removes its lock files on SIGTERM; SIGKILL follows after this time.
GRACE_SECONDS = 5.0

# Reads a pipe that nobody writes to. Its other end closes with this process, whatever ends that; and with a
# child that was just being started, which by then bears its mark: none is missed. Three rounds, because what is
# found may be starting something.
_WATCH = """
while read -r _; do :; done
for signal in TERM KILL KILL; do
    found=$(grep -lsxzF "$1" /proc/[0-9]*/environ)
    test -n "$found" || exit 0
    for file in $found; do
        process=${file#/proc/}
        kill -s "$signal" "${process%/environ}" 2>/dev/null
    done
    sleep "$2"
done
"""


@functools.cache
def mark() -> Mapping[str, str]:
    """What the environment of a git child needs for it to end soon after this process, however that ends.

    The first call starts a small shell that waits for that. Needs /proc (Linux) and a `grep` that knows `-z`.
    """
    value = uuid.uuid4().hex
    read_end, _ = os.pipe()  # neither is inherited; the write end stays open as long as this process
    command = ["sh", "-c", _WATCH, "forgelet-git-orphans", f"{_VARIABLE}={value}", str(GRACE_SECONDS)]
    os.posix_spawn(
        "/bin/sh",
        command,
        {"PATH": os.environ.get("PATH", os.defpath)},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, read_end, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setsid=True,
    )
    os.close(read_end)
    return {_VARIABLE: value}
