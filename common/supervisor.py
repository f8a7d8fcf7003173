"""The supervisor of several processes that serve as one: it starts workers, restarts those that end, and replaces
all on SIGHUP.

Each worker has a listening socket of its own on the same port (SO_REUSEPORT). The supervisor holds the sockets, too:
clients that have connected to a worker which dies are answered by its successor. The successor of a living worker
listens on the same socket, and its predecessor is told to end when it is ready. This module imports nothing of the
service.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import structlog

from common import logs, workers
from common.workers import ASKED, FIGURES, OTHERS, READY, WANTED, WORKER_VARIABLE, Figures, message, received

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

#: Seconds in which a successor has to be ready. The first worker runs migrations.
READY_SECONDS = 120.0
#: Seconds in which a worker has to send its metrics. Otherwise its last ones are used.
FIGURES_SECONDS = 1.0


class Worker:
    """One worker process."""

    def __init__(self, process: asyncio.subprocess.Process, line: Streams, section: int) -> None:
        self.process = process
        self.section = section
        self.started_at = time.monotonic()
        #: The supervisor's end of the socket. If it is closed, the worker ends.
        self._reader, self.writer = line
        self.ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.ensure_future(process.wait())
        #: The metrics that the worker has sent last.
        self.figures: Figures = {}
        self._has_figures = asyncio.Event()

    async def listen(self, on_request: Callable[["Worker"], None]) -> None:
        """Read the worker's messages until it ends. Call `on_request` when it requests the metrics of others."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                letter, content = await received(self._reader)
                if letter == READY and not self.ready.done():
                    self.ready.set_result(True)
                elif letter in (FIGURES, ASKED):
                    self.figures = json.loads(content)
                    self._has_figures.set()
                if letter == ASKED:
                    on_request(self)
        if not self.ready.done():
            self.ready.set_result(False)

    async def fetch_figures(self) -> None:
        """Request the worker's metrics and wait for them for a limited time."""
        self._has_figures.clear()
        self.writer.write(message(WANTED))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIGURES_SECONDS):
                await self._has_figures.wait()

    @property
    def serves(self) -> bool:
        """Whether the worker is or was ready."""
        return self.ready.done() and self.ready.result()

    async def is_ready(self) -> bool:
        """Wait until the worker is ready. Return False if it ends or takes too long."""
        either: set[asyncio.Future[Any]] = {self.ready, self.ended}
        await asyncio.wait(either, timeout=READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return self.serves and not self.ended.done()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


log = structlog.get_logger(__name__)

#: A worker that lived for fewer seconds is restarted after a pause, which doubles each time.
SHORT_LIFE = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
#: Seconds between requests for metrics, so that little is lost if a worker is killed.
ASK_EVERY = 10.0
#: The exit status for invalid settings. Another start would end the same way.
MISTAKEN = 2


class Slot:
    """The place of one worker and its successors."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sockets: list[socket.socket] = []
        self.worker: Worker | None = None
        self.pause = 0.0
        self.lock = asyncio.Lock()

    def bind(self, host: str, ports: list[int]) -> None:
        """Bind the slot's sockets if they are not bound."""
        if not self.sockets:
            self.sockets = [_bound(host, port) for port in ports if port]

    def close(self) -> None:
        """Close the slot's sockets, so that no client connects here any more."""
        for sock in self.sockets:
            sock.close()
        self.sockets = []


class Supervisor:
    """The supervisor of the workers of one plan (`serving.become_supervisor`)."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._slots = [Slot(number) for number in range(plan["workers"])]
        self._all: set[Worker] = set()
        #: Twice the number of workers, because a worker and its successor count at the same time.
        self._sections = 2 * plan["workers"]
        self._memory = workers.make_shared_memory(self._sections)
        self._watches: set[asyncio.Task[None]] = set()
        #: The metrics of workers that have ended.
        self._ended: Figures = {}
        self._stop = asyncio.Event()
        self._renew = asyncio.Event()
        self.status = 0

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, or until no worker can be started because of its settings."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._renew.set)
        keeping = asyncio.ensure_future(self._keep())
        await asyncio.wait(
            {keeping, asyncio.ensure_future(self._stop.wait())}, return_when=asyncio.FIRST_COMPLETED
        )
        self._stop.set()
        keeping.cancel()
        await self._end()

    async def _keep(self) -> None:
        first = await self._begin(self._slots[0], late=False)  # the first one migrates, and writes the key
        while not await first.is_ready():
            await first.ended
            if self.status:
                return
            await asyncio.sleep(FIRST_PAUSE)
            first = self._slots[0].worker or first
        for slot in self._slots[1:]:
            await self._begin(slot, late=True)
        log.info("workers have begun", workers=len(self._slots))
        self._watch_over(self._ask_again_and_again())
        while True:
            await self._renew.wait()
            self._renew.clear()
            await self._replace_all()

    async def _begin(self, slot: Slot, *, late: bool) -> Worker:
        """Start a worker in the slot and return it. A previous one continues until it is asked to end."""
        operations = self._plan["operations_port"]
        ports = [self._plan["port"], operations and operations + slot.number]
        slot.bind(self._plan["host"], ports)
        own_end, worker_end = socket.socketpair()
        public, operators = [sock.fileno() for sock in slot.sockets] + [0] * (2 - len(slot.sockets))
        address = {
            "number": slot.number,
            "late": late,
            "public": public,
            "operators": operators,
            "line": worker_end.fileno(),
            "memory": self._memory,
            "section": (section := self._free_section()),
            "sections": self._sections,
        }
        streams = await asyncio.open_connection(sock=own_end)
        descriptors = [number for number in (public, operators, worker_end.fileno(), self._memory) if number]
        with worker_end:
            process = await asyncio.create_subprocess_exec(
                *self._plan["command"],
                env=os.environ | {WORKER_VARIABLE: json.dumps(address)},
                pass_fds=descriptors,
                stdin=asyncio.subprocess.DEVNULL,
            )
        worker = slot.worker = Worker(process, streams, section)
        self._all.add(worker)
        self._watch_over(self._watch(slot, worker))
        return worker

    def _watch_over(self, watch: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(watch)
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    def _free_section(self) -> int:
        """Return a section of the workers' shared memory in which no living worker counts."""
        return min(set(range(self._sections)) - {worker.section for worker in self._all})

    async def _watch(self, slot: Slot, worker: Worker) -> None:
        listening = asyncio.ensure_future(worker.listen(self._on_request))
        status = await worker.ended
        await asyncio.wait({listening}, timeout=FIGURES_SECONDS)  # read its last messages
        listening.cancel()
        worker.writer.close()
        self._ended = workers.sum_figures([self._ended, workers.without_gauges(worker.figures)])
        self._all.discard(worker)
        if self._stop.is_set() or slot.worker is not worker:
            return
        log.error("a worker has ended and is started again", worker=slot.number, status=status)
        if status == MISTAKEN and slot.number == 0 and not worker.serves:
            self.status = status
            self._stop.set()
            return
        async with slot.lock:
            if slot.worker is worker:
                await self._pause(slot, worker)
                await self._begin(slot, late=True)

    def _on_request(self, worker: Worker) -> None:
        self._watch_over(self._send_others(worker))

    async def _send_others(self, worker: Worker) -> None:
        """Send a worker the metrics of all others."""
        await self._ask(worker)
        others = [self._ended, *(other.figures for other in self._all if other is not worker)]
        with contextlib.suppress(OSError):
            worker.writer.write(message(OTHERS, json.dumps(others).encode()))
            await worker.writer.drain()

    async def _ask(self, asker: Worker | None = None) -> None:
        """Ask all workers but one for their metrics."""
        calls = [worker.fetch_figures() for worker in self._all if worker.serves and worker is not asker]
        await asyncio.gather(*calls, return_exceptions=True)

    async def _ask_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(ASK_EVERY)
            await self._ask()

    async def _pause(self, slot: Slot, worker: Worker) -> None:
        """Wait before a worker is restarted, except after its first short life. No client connects to it during that
        time."""
        lived = time.monotonic() - worker.started_at
        if lived >= SHORT_LIFE:
            slot.pause = 0.0
        if slot.pause:
            slot.close()
            await asyncio.sleep(slot.pause)
        slot.pause = min(slot.pause * 2 or FIRST_PAUSE, LONGEST_PAUSE) if lived < SHORT_LIFE else 0.0

    async def _replace_all(self) -> None:
        """Replace the workers one after the other. If a successor does not become ready, keep the others."""
        for slot in self._slots:
            async with slot.lock:
                old = slot.worker
                new = await self._begin_beside(slot, old)
                if new is None:
                    log.error("the workers stay as they are: a new one did not get ready", worker=slot.number)
                    return
                if old is not None:
                    old.signal(signal.SIGTERM)
                    await asyncio.wait({old.ended}, timeout=self._plan["grace"])
        log.info("workers have been replaced", workers=len(self._slots))

    async def _begin_beside(self, slot: Slot, old: Worker | None) -> Worker | None:
        new = await self._begin(slot, late=True)
        slot.worker = old  # its end does not matter until it is ready
        if await new.is_ready():
            slot.worker = new
            return new
        new.signal(signal.SIGKILL)
        return None

    async def _end(self) -> None:
        """End all workers in order, and kill those that do not end in time."""
        for slot in self._slots:
            slot.close()
        for worker in self._all:
            worker.signal(signal.SIGTERM)
        if self._all:
            await asyncio.wait({worker.ended for worker in self._all}, timeout=self._plan["grace"])
        for worker in list(self._all):
            worker.signal(signal.SIGKILL)
            await worker.ended


def _bound(host: str, port: int) -> socket.socket:
    """Return a bound socket. Its worker listens on it when it can answer, so no client connects earlier."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(address)
    return sock


def main() -> None:
    """Run the supervisor of the plan that is the only argument."""
    plan = json.loads(sys.argv[1])
    form, level, file = plan["log"]
    logs.configure(form, level, file=Path(file) if file else None)
    sys.exit(asyncio.run(_run(plan)))


async def _run(plan: dict[str, Any]) -> int:
    supervisor = Supervisor(plan)
    await supervisor.run()
    return supervisor.status
