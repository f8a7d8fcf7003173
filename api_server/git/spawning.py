"""The start of a child process: its environment, its limits, and its priority.

Children are not started by the event loop's own `subprocess_exec`. uvloop forks, and until Python 3.12 a child that is
forked while another thread enters the interpreter waits forever for a lock that this thread held, and the loop waits
for the child. `subprocess.Popen` uses vfork(2), so no Python runs in the child.

The standard streams of children are sockets and not pipes. uvloop closes a pipe twice, and the second time the
descriptor may belong to another file.

A git that somebody waits for has the priority of this process: with a lower one it takes three times as long while the
processors are busy, and saves others only a few milliseconds per request. But more such children than there are
processors would leave too little to the server, for which everybody waits, and so would children that compute for
minutes. Their priority is lowered, and stays so until their end: only root can raise it again.
"""

import asyncio
import functools
import os
import socket
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

#: The children of this process that are running.
RUNNING: set["Process"] = set()


class Process:
    """A running process: its standard streams (`stdin` only if requested), and its end."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self.pid = popen.pid
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader
        self.stderr: asyncio.StreamReader
        self._popen = popen
        self._connections: list[asyncio.StreamWriter] = []
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._exit = os.pidfd_open(popen.pid)
        self._loop.add_reader(self._exit, self._reap)
        RUNNING.add(self)

    @property
    def returncode(self) -> int | None:
        """The status (negative: the signal that has killed the process), or None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Wait for the end of the process, not of its output. Return its status."""
        return await asyncio.shield(self._ended)

    def close(self) -> None:
        """Close the streams, even if other processes hold the other ends. Unread output is lost."""
        for connection in self._connections:
            transport = connection.transport
            # A closing transport waits until its buffer is written.
            if not transport.is_closing() or transport.get_write_buffer_size():
                transport.abort()

    async def connect(
        self, end: socket.socket, limit: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open this side of one of the child's streams. About `limit` bytes of unread output are buffered."""
        reader, writer = await asyncio.open_unix_connection(sock=end, limit=limit)
        self._connections.append(writer)
        return reader, writer

    def _reap(self) -> None:
        self._loop.remove_reader(self._exit)
        os.close(self._exit)
        RUNNING.discard(self)
        self._ended.set_result(self._popen.wait())


async def spawn(command: Sequence[str], *, with_stdin: bool, limit: int, **options: Any) -> Process:
    """Start a process. `options` are those of `subprocess.Popen`. Raise `OSError`."""
    with ExitStack() as cleanup, ExitStack() as child_ends:
        stdin = _pair(cleanup, child_ends) if with_stdin else None
        stdout, stderr = _pair(cleanup, child_ends), _pair(cleanup, child_ends)
        popen = subprocess.Popen(  # noqa: ASYNC220 - it returns as soon as the program has started
            command,
            stdin=stdin[1].fileno() if stdin else subprocess.DEVNULL,
            stdout=stdout[1].fileno(),
            stderr=stderr[1].fileno(),
            **options,
        )
        cleanup.callback(popen.wait)
        cleanup.callback(popen.kill)
        child_ends.close()
        process = Process(popen)
        cleanup.callback(process.close)
        process.stdout, _ = await process.connect(stdout[0], limit)
        process.stderr, _ = await process.connect(stderr[0], limit)
        if stdin:
            _, process.stdin = await process.connect(stdin[0], limit)
        cleanup.pop_all()
    return process


def _pair(cleanup: ExitStack, child_ends: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets: this side's, which `cleanup` closes if the start fails, and the child's,
    which `child_ends` closes."""
    parent_end, child_end = socket.socketpair()
    return cleanup.enter_context(parent_end), child_ends.enter_context(child_end)


#: The variable by which git and all that it starts are found: they inherit it.
_MARK_VARIABLE = "FORGELET_GIT_OF"
#: Seconds between SIGTERM, on which git removes its lock files, and SIGKILL.
GRACE_SECONDS = 5.0

# A shell script that reads a pipe to which nobody writes. The pipe ends when this process has ended, for whatever
# reason, and every child that was just being started has become its program, which by then has the variable: none is
# missed. There are three rounds, because the processes that are found may be starting others.
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
def orphan_mark() -> Mapping[str, str]:
    """Return the variable by which git children are found and ended soon after this process, however this process
    ends.

    The first call starts a small shell that waits for that end. It needs /proc (Linux) and a `grep` that supports
    `-z`.
    """
    value = uuid.uuid4().hex
    read_end, _ = os.pipe()  # neither end is inherited; the write end stays open until this process ends
    command = ["sh", "-c", _WATCH, "forgelet-git-orphans", f"{_MARK_VARIABLE}={value}", str(GRACE_SECONDS)]
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
    return {_MARK_VARIABLE: value}


#: How much lower than this process's priority the lower priority is, as nice(1) counts.
NICE_STEPS = 10
#: Seconds after which the priority of a git is lowered, and of all that it has started.
LONG_SECONDS = 10.0

_MAX_FIRST = len(os.sched_getaffinity(0))
_first = 0


@contextmanager
def priority_turn(*, background: bool) -> Iterator[bool]:
    """Yield whether the git that runs during the block needs a lower priority from the beginning."""
    global _first  # noqa: PLW0603 (as the processors are all repositories')
    gives_way = background or _first >= _MAX_FIRST
    _first += not gives_way
    try:
        yield gives_way
    finally:
        _first -= not gives_way


def give_way(session: int) -> None:
    """Lower the priority of the git that leads the session, and of all that it has started. Do nothing if it has
    ended."""
    with suppress(OSError):
        # Linux compares sessions first: see `_GIVING_WAY`.
        Path(f"/proc/{session}/autogroup").write_text(str(NICE_STEPS))
    with suppress(OSError):
        os.setpriority(os.PRIO_PGRP, session, os.getpriority(os.PRIO_PROCESS, 0) + NICE_STEPS)


@attrs.frozen
class ChildLimits:
    """Limits of a child: `memory` is in bytes (of data: mapped files do not count), `cpu` in seconds."""

    memory: int = 512 * 2**20
    cpu: int = 900


_current = ChildLimits()


def set_limits(limits: ChildLimits) -> None:
    """Set the limits of all children that are started from now on."""
    global _current  # noqa: PLW0603 (as rlimits are the process's)
    _current = limits


#: A shell sets the limits and then becomes git, so that they hold before git starts anything.
_SET = 'ulimit -c 0; ulimit -d "$1" && ulimit -t "$2" && shift 2 && '
_LIMITED = _SET + 'exec "$@"'
#: The same with a lower priority. Linux gives each session (each git is one) the same share of the processor whatever
#: its `nice` value is, unless `autogroup` is set as well.
_GIVING_WAY = (
    _SET + f'{{ echo {NICE_STEPS} >/proc/$$/autogroup; }} 2>/dev/null; exec nice -n {NICE_STEPS} "$@"'
)


def limited(command: Sequence[str], *, gives_way: bool) -> list[str]:
    """Return the command line that runs `command` under the limits, and with a lower priority if `gives_way`."""
    script = _GIVING_WAY if gives_way else _LIMITED
    return ["sh", "-c", script, "sh", str(_current.memory // 1024), str(_current.cpu), *command]


#: Configuration of every git child. It replaces the configuration of the system and of users, which is never read.
CHILD_CONFIGURATION = (
    ("safe.directory", "*"),  # git accepts our folders, whoever owns them
    ("protocol.allow", "never"),  # no transport starts unless the caller allows one
    ("core.hooksPath", os.devnull),
    ("core.attributesFile", os.devnull),
    # A push or commit that was reported as done survives a power cut. `repositories.sync_refs` and others sync the
    # folders.
    ("core.fsync", "objects,derived-metadata,reference"),
    ("core.fsyncMethod", "fsync"),
    # In milliseconds, as long as git waits for packed-refs. Locks last only for a moment.
    ("core.filesRefLockTimeout", "1000"),
    ("gc.auto", "0"),  # housekeeping is started explicitly, never as a side effect of a request
    ("maintenance.auto", "false"),
    ("advice.detachedHead", "false"),
    # Limits of a child's caches of objects: many children run at once, each within `ChildLimits`.
    ("core.bigFileThreshold", "32m"),  # larger contents are streamed, and never compared with others
    ("core.deltaBaseCacheLimit", "32m"),
    ("core.packedGitWindowSize", "32m"),
    ("core.packedGitLimit", "256m"),
    ("pack.threads", "2"),
    ("pack.windowMemory", "32m"),  # per thread
    ("pack.deltaCacheSize", "32m"),
)


def child_environment(
    extra: Mapping[str, str] | None = None, configuration: Sequence[tuple[str, str]] = ()
) -> dict[str, str]:
    """Return the whole environment of a git child. Only PATH and TMPDIR are inherited."""
    pairs = (*CHILD_CONFIGURATION, *configuration)
    numbered = {f"GIT_CONFIG_KEY_{n}": key for n, (key, _) in enumerate(pairs)}
    numbered |= {f"GIT_CONFIG_VALUE_{n}": value for n, (_, value) in enumerate(pairs)}
    inherited = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    return {
        **inherited,
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",  # zip archives carry local times
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",  # a pushed refs/replace/ must not change what a commit shows
        "GIT_LITERAL_PATHSPECS": "1",  # paths with * or : in them have no special meaning
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_COUNT": str(len(pairs)),
        **numbered,
        **(extra or {}),
    }
