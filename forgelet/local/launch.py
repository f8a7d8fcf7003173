"""Becomes another program, which the kernel ends with the process that started it (Linux).

`python -I -S launch.py PARENT SIGNAL ACCOUNT PROGRAM ...`, where ACCOUNT is `UID:GID`, or `-` for the one that we are.
It is a process of its own since nothing of Python may run between fork and exec where there are threads; and it loads
next to nothing.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
#: What shells end with where a program cannot be started.
NOT_STARTED = 127


def main(parent: str, stop_signal: str, account: str, *command: str) -> None:
    """SIGHUP is ignored, which is harmless until the program listens to it; other signals are as for any program."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # which Python itself handles
        signal.signal(number, signal.SIG_DFL)
    if account != "-":
        uid, _, gid = account.partition(":")
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))  # takes back what was asked of the kernel before
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(stop_signal))
    if os.getppid() != int(parent):  # it has ended already
        return
    try:
        os.execvp(command[0], command)
    except OSError as problem:
        sys.stderr.write(f"{problem.strerror}: {command[0]}\n")
        sys.exit(NOT_STARTED)


if __name__ == "__main__":
    main(*sys.argv[1:])
