"""Starting a process that is spoken with, on any event loop.

Not by the loop's own `subprocess_exec`: uvloop forks, and until Python 3.12 a child that is forked while another thread
enters the interpreter waits for ever for a lock that this thread held, and the loop for the child. `subprocess.Popen`
uses vfork(2): no Python runs in the child.

Through sockets and not pipes, which uvloop closes twice: the second time the number may be somebody else's.
"""

import asyncio
import os
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

#: Those of this process that run now.
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
        """Waits for its end, not for that of its output; its status."""
        return await asyncio.shield(self._ended)

    def close(self) -> None:
        """Lets go of the streams, whoever else holds their other ends; what has not been read of them nobody will."""
        for connection in self._connections:
            transport = connection.transport
            if not transport.is_closing() or transport.get_write_buffer_size():  # which it waits to be rid of
                transport.abort()

    async def connect(
        self, end: socket.socket, limit: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Speaks through our end of one of its streams; of what it says about `limit` bytes wait for their reader."""
        reader, writer = await asyncio.open_unix_connection(sock=end, limit=limit)
        self._connections.append(writer)
        return reader, writer

    def _reap(self) -> None:
        self._loop.remove_reader(self._exit)
        os.close(self._exit)
        RUNNING.discard(self)
        self._ended.set_result(self._popen.wait())


async def spawn(command: Sequence[str], *, with_stdin: bool, limit: int, **options: Any) -> Process:
    """Starts a process; `options` are those of `subprocess.Popen`. Raises OSError."""
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
    """Our end, closed where nothing comes of it, and the process's."""
    ours, theirs = socket.socketpair()
    return undone.enter_context(ours), given.enter_context(theirs)
