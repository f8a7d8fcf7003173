"""A launcher that becomes another program, which the kernel ends together with the process that started it (Linux).

Use it as `python -I -S launch.py PARENT SIGNAL ACCOUNT PROGRAM ...`; ACCOUNT is `UID:GID`, or `-` for the current
account. It is a process of its own, because no Python code may run between fork and exec in a process with threads. It
imports very little.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
#: The exit status of shells if a program cannot be started.
NOT_STARTED = 127


def main(parent: str, stop_signal: str, account: str, *command: str) -> None:
    """Run the program with the usual handlers of signals, except that SIGHUP is ignored until the program handles
    it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # Python handles these itself
        signal.signal(number, signal.SIG_DFL)
    if account != "-":
        uid, _, gid = account.partition(":")
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))  # this resets PR_SET_PDEATHSIG, so it comes first
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(stop_signal))
    if os.getppid() != int(parent):  # the parent has already ended
        return
    try:
        os.execvp(command[0], command)
    except OSError as problem:
        sys.stderr.write(f"{problem.strerror}: {command[0]}\n")
        sys.exit(NOT_STARTED)


if __name__ == "__main__":
    main(*sys.argv[1:])
