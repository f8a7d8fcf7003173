"""How a child process starts: what it sees and may use of this machine, and which children give way.

Children are not started by the loop's own `subprocess_exec`: uvloop forks, and until Python 3.12 a child that is forked
while another thread enters the interpreter waits for ever for a lock that this thread held, and the loop for the child.
`subprocess.Popen` uses vfork(2): no Python runs in the child.

They are spoken with through sockets, not through pipes, which uvloop closes twice: the second time the number may be
somebody else's.

A git that somebody waits for has the priority of this process: one that gives way while the processors are busy takes
three times as long, and spares others a few milliseconds a request. But more of them than there are processors would
leave too little to the server, for whom everybody waits, and so would some that compute for minutes. What gives way
does so until its end: only root gives a priority back.
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

#: The children of this process that run now.
RUNNING: set["Process"] = set()


class Process:
    """A running process: its standard streams (`stdin` only if asked for), and its end."""

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
        """Its status (negative: the signal that has killed it); None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Wait for the end of the process, not of its output. Return its status."""
        return await asyncio.shield(self._ended)

    def close(self) -> None:
        """Close the streams, even if other processes hold the other ends. Unread output is lost."""
        for connection in self._connections:
            transport = connection.transport
            if not transport.is_closing() or transport.get_write_buffer_size():  # which it waits to be rid of
                transport.abort()

    async def connect(
        self, end: socket.socket, limit: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open our end of one of its streams. About `limit` bytes of unread output are buffered."""
        reader, writer = await asyncio.open_unix_connection(sock=end, limit=limit)
        self._connections.append(writer)
        return reader, writer

    def _reap(self) -> None:
        self._loop.remove_reader(self._exit)
        os.close(self._exit)
        RUNNING.discard(self)
        self._ended.set_result(self._popen.wait())


async def spawn(command: Sequence[str], *, with_stdin: bool, limit: int, **options: Any) -> Process:
    """Start a process; `options` are those of `subprocess.Popen`. Raise OSError."""
    with ExitStack() as undone, ExitStack() as given:
        stdin = _pair(undone, given) if with_stdin else None
        stdout, stderr = _pair(undone, given), _pair(undone, given)
        popen = subprocess.Popen(  # noqa: ASYNC220 - it returns as soon as the program is there
            command,
            stdin=stdin[1].fileno() if stdin else subprocess.DEVNULL,
            stdout=stdout[1].fileno(),
            stderr=stderr[1].fileno(),
            **options,
        )
        undone.callback(popen.wait)
        undone.callback(popen.kill)
        given.close()
        process = Process(popen)
        undone.callback(process.close)
        process.stdout, _ = await process.connect(stdout[0], limit)
        process.stderr, _ = await process.connect(stderr[0], limit)
        if stdin:
            _, process.stdin = await process.connect(stdin[0], limit)
        undone.pop_all()
    return process


def _pair(undone: ExitStack, given: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Return our end, which `undone` closes if the start fails, and the process's end, which `given` closes."""
    ours, theirs = socket.socketpair()
    return undone.enter_context(ours), given.enter_context(theirs)


#: Git and all that it starts inherit this variable, by which they are found.
_MARK_VARIABLE = "FORGELET_GIT_OF"
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
def orphan_mark() -> Mapping[str, str]:
    """Return the variable by which git children are found and ended soon after this process, however it ends.

    The first call starts a small shell that waits for that. Needs /proc (Linux) and a `grep` that knows `-z`.
    """
    value = uuid.uuid4().hex
    read_end, _ = os.pipe()  # neither is inherited; the write end stays open as long as this process
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


#: Below this process's priority, as nice(1) counts.
NICE_STEPS = 10
#: Seconds after which a git gives way, and what it has started.
LONG_SECONDS = 10.0

_MOST_FIRST = len(os.sched_getaffinity(0))
_first = 0


@contextmanager
def priority_turn(*, background: bool) -> Iterator[bool]:
    """Yield whether the git that runs during the block needs a lower priority from the beginning."""
    global _first  # noqa: PLW0603 (as the processors are all repositories')
    gives_way = background or _first >= _MOST_FIRST
    _first += not gives_way
    try:
        yield gives_way
    finally:
        _first -= not gives_way


def give_way(session: int) -> None:
    """Lower the priority of the git that leads the session, and of all that it has started. Ignore an ended one."""
    with suppress(OSError):
        Path(f"/proc/{session}/autogroup").write_text(
            str(NICE_STEPS)
        )  # Linux looks at sessions first: `child_limits`
    with suppress(OSError):
        os.setpriority(os.PRIO_PGRP, session, os.getpriority(os.PRIO_PROCESS, 0) + NICE_STEPS)


@attrs.frozen
class ChildLimits:
    """`memory` in bytes (of data: what is mapped from files does not count), `cpu` in seconds."""

    memory: int = 512 * 2**20
    cpu: int = 900


_current = ChildLimits()


def set_limits(limits: ChildLimits) -> None:
    """Set the limits of all git children that are started from now on."""
    global _current  # noqa: PLW0603 (as rlimits are the process's)
    _current = limits


#: A shell sets the limits and then execs git, so that they hold before git starts anything.
_SET = 'ulimit -c 0; ulimit -d "$1" && ulimit -t "$2" && shift 2 && '
_LIMITED = _SET + 'exec "$@"'
#: The same with a lower priority. Linux gives each session (each git is one) the same share of the
#: processor whatever its `nice`, unless `autogroup` is set as well.
_GIVING_WAY = (
    _SET + f'{{ echo {NICE_STEPS} >/proc/$$/autogroup; }} 2>/dev/null; exec nice -n {NICE_STEPS} "$@"'
)


def limited(command: Sequence[str], *, gives_way: bool) -> list[str]:
    """Return the command line that runs `command` under the limits, and with lower priority if `gives_way`."""
    script = _GIVING_WAY if gives_way else _LIMITED
    return ["sh", "-c", script, "sh", str(_current.memory // 1024), str(_current.cpu), *command]


#: Configuration of every git child. It replaces the system's and the user's, which are never read.
CHILD_CONFIGURATION = (
    ("safe.directory", "*"),  # our folders, whoever owns them
    ("protocol.allow", "never"),  # no transport starts unless the caller allows one
    ("core.hooksPath", os.devnull),
    ("core.attributesFile", os.devnull),
    # What a push or commit reported as done survives a power cut; `durable` syncs the folders.
    ("core.fsync", "objects,derived-metadata,reference"),
    ("core.fsyncMethod", "fsync"),
    (
        "core.filesRefLockTimeout",
        "1000",
    ),  # ms, as long as git waits for packed-refs; locks are held for a moment
    ("gc.auto", "0"),  # housekeeping is asked for, it never trails behind a request
    ("maintenance.auto", "false"),
    ("advice.detachedHead", "false"),
    # What one child may remember of objects: many run at once, each within `child_limits`.
    ("core.bigFileThreshold", "32m"),  # above it, contents are streamed and never compared with each other
    ("core.deltaBaseCacheLimit", "32m"),
    ("core.packedGitWindowSize", "32m"),
    ("core.packedGitLimit", "256m"),
    ("pack.threads", "2"),
    ("pack.windowMemory", "32m"),  # of each thread
    ("pack.deltaCacheSize", "32m"),
)


def child_environment(
    extra: Mapping[str, str] | None = None, configuration: Sequence[tuple[str, str]] = ()
) -> dict[str, str]:
    """Return the whole environment of a git child: nothing is inherited but PATH and TMPDIR."""
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
        "GIT_LITERAL_PATHSPECS": "1",  # a path is a path, even one with * or : in it
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_COUNT": str(len(pairs)),
        **numbered,
        **(extra or {}),
    }
