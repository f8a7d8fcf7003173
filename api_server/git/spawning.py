"""Starting a process with its pipes, on any event loop.

Not by the loop's own `subprocess_exec`: uvloop forks, and until Python 3.12 a child that is forked while another thread
enters the interpreter waits for ever for a lock that this thread held, and the loop for the child. `subprocess.Popen`
uses vfork(2): no Python runs in the child.
"""

import asyncio
import os
import subprocess
from collections.abc import Sequence
from typing import IO, Any, cast


class Process:
    """A running process: its pipes as streams (`stdin` only if asked for), and its end."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self.pid = popen.pid
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader
        self.stderr: asyncio.StreamReader
        self._popen = popen
        self._readings: list[asyncio.ReadTransport] = []
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._exit = os.pidfd_open(popen.pid)
        self._loop.add_reader(self._exit, self._reap)

    @property
    def returncode(self) -> int | None:
        """Its status (negative: the signal that has killed it); None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Waits for its end, not for that of its output; its status."""
        return await asyncio.shield(self._ended)

    def close(self) -> None:
        """Lets go of the pipes, whoever else holds their other ends."""
        for reading in self._readings:
            reading.close()
        if self.stdin is not None and not self.stdin.is_closing():
            self.stdin.transport.abort()  # what has not been read of it nobody will

    async def connect(self, limit: int) -> None:
        """Makes streams of the pipes, that keep about `limit` bytes."""
        self.stdout = await self._reader(cast("IO[bytes]", self._popen.stdout), limit)
        self.stderr = await self._reader(cast("IO[bytes]", self._popen.stderr), limit)
        if self._popen.stdin is not None:
            transport, protocol = await self._loop.connect_write_pipe(self._protocol, self._popen.stdin)
            self.stdin = asyncio.StreamWriter(transport, protocol, None, self._loop)

    async def _reader(self, pipe: IO[bytes], limit: int) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(limit, self._loop)
        transport, _ = await self._loop.connect_read_pipe(lambda: self._protocol(reader), pipe)
        self._readings.append(transport)
        return reader

    def _protocol(self, reader: asyncio.StreamReader | None = None) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(reader or asyncio.StreamReader(loop=self._loop), loop=self._loop)

    def _reap(self) -> None:
        self._loop.remove_reader(self._exit)
        os.close(self._exit)
        self._ended.set_result(self._popen.wait())


async def spawn(command: Sequence[str], *, with_stdin: bool, limit: int, **options: Any) -> Process:
    """Starts a process; `options` are those of `subprocess.Popen`. Raises OSError."""
    popen = subprocess.Popen(  # noqa: ASYNC220 - it returns as soon as the program is there
        command,
        stdin=subprocess.PIPE if with_stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        **options,
    )
    try:
        process = Process(popen)
        await process.connect(limit)
    except BaseException:
        with popen:  # closes its pipes and waits
            popen.kill()
        raise
    return process
