"""A worker, one of several processes that serve as one: its messages to the supervisor, and counters that workers
share.

Worker and supervisor exchange messages on a socket: the worker reports that it is ready, and both request metrics and
send them. Each notices the end of the other by the end of the connection. A message is a letter, the length of the
content (four bytes), and the content. Metrics of several workers are added up. Between processes they are plain values:
for each family's name its type, its explanation, and its samples as [name, labels, value].

Counts of uses in windows of time are in memory that all workers share. There are no locks: each worker counts in a
section of its own and reads those of the others. The count of a key is one word (the beginning of the window and the
count) beside one that names the key, and processors write words atomically. A killed worker blocks nothing: its counts
remain until their window ends.
"""

import asyncio
import contextlib
import functools
import hashlib
import json
import mmap
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

import attrs

#: The variable by which a supervisor makes a process a worker.
WORKER_VARIABLE = "FORGELET_WORKER"


@attrs.frozen(kw_only=True)
class WorkerAddress:
    """The resources that a worker gets from its supervisor. `number` counts workers from 0. `public` and `operators`
    are descriptors of listening sockets (0: none). `line` is the descriptor of the socket to the supervisor, and
    `memory` that of the file in which workers count together, each in its own `section` (`SharedWindows`)."""

    number: int
    #: Whether another worker answers clients until this one is ready.
    late: bool
    public: int
    operators: int
    line: int
    memory: int
    section: int
    sections: int

    def report_ready(self) -> None:
        """Notify the supervisor that clients are served from now on. Ignore a supervisor that has ended."""
        with contextlib.suppress(OSError):
            os.write(self.line, b"r\0\0\0\0")  # `READY`


@functools.cache
def worker_address() -> WorkerAddress | None:
    """Return the resources that the supervisor has given to this worker, or None if the process serves alone. Children
    of this process do not inherit them."""
    address = os.environ.pop(WORKER_VARIABLE, None)
    if address is None:
        return None
    worker = WorkerAddress(**json.loads(address))
    for descriptor in (worker.public, worker.operators, worker.line, worker.memory):
        if descriptor:
            os.set_inheritable(descriptor, False)
    return worker


Figures = dict[str, tuple[str, str, list[tuple[str, dict[str, str], float]]]]

#: Gauges that are added up over all processes, in either program.
SUMMED = frozenset(
    ("process_virtual_memory_bytes", "process_resident_memory_bytes", "process_open_fds", "process_max_fds")
)
#: Metrics that are times; the earliest is used instead of the sum.
_EARLIEST = ("_created", "process_start_time_seconds")


def addable_figures(families: Iterable[Any], summed: Collection[str]) -> Figures:
    """Return the metrics that can be added up: all but gauges, and those that `summed` names."""
    return {
        family.name: (
            family.type,
            family.documentation,
            [(sample.name, dict(sample.labels), sample.value) for sample in family.samples],
        )
        for family in families
        if family.type != "gauge" or family.name in summed or family.name in _EARLIEST
    }


def without_gauges(figures: Figures) -> Figures:
    """Return the metrics of an ended process that still hold: all but gauges."""
    return {name: family for name, family in figures.items() if family[0] != "gauge"}


def sum_figures(several: Iterable[Figures]) -> Figures:
    """Return the sum of all metrics."""
    total: Figures = {}
    for figures in several:
        for name, (kind, documentation, samples) in figures.items():
            sums = total.setdefault(name, (kind, documentation, []))[2]
            sums[:] = _sum_samples([*sums, *samples])
    return total


def _sum_samples(
    samples: Iterable[tuple[str, dict[str, str], float]],
) -> list[tuple[str, dict[str, str], float]]:
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[str, dict[str, str], float]] = {}
    for name, labels, value in samples:
        key = name, tuple(sorted(labels.items()))
        before = [sums[key][2]] if key in sums else []
        together = min([value, *before]) if name.endswith(_EARLIEST) else sum([value, *before])
        sums[key] = name, labels, together
    return list(sums.values())


#: The letters of messages. From a worker: it serves (`READY`). From the supervisor: a request for metrics (`WANTED`),
#: which the worker answers with `FIGURES`; it also sends these when it ends. From a worker: its own metrics, with a
#: request for those of all others (`ASKED`), which the supervisor answers with `OTHERS`.
READY, WANTED, FIGURES, ASKED, OTHERS = b"r", b"w", b"f", b"a", b"o"
#: Seconds for which a worker waits for others' metrics. The supervisor waits for less.
ANSWER_SECONDS = 3.0


def message(letter: bytes, content: bytes = b"") -> bytes:
    """Return the bytes of a message."""
    return letter + len(content).to_bytes(4) + content


async def received(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read a message and return its letter and its content. Raise `IncompleteReadError` or `OSError` at the end."""
    letter, length = await reader.readexactly(1), int.from_bytes(await reader.readexactly(4))
    return letter, await reader.readexactly(length)


class Line:
    """The worker's end of the socket that it shares with its supervisor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writer: asyncio.StreamWriter | None = None
        self._asking = asyncio.Lock()
        self._others: asyncio.Future[bytes] | None = None
        #: A function that returns this process's metrics. It is called in a thread.
        self.figures: Callable[[], Figures] | None = None

    async def listen(self) -> None:
        """Answer the supervisor's messages until it ends."""
        reader, self._writer = await asyncio.open_connection(sock=socket.socket(fileno=self._descriptor))
        self._writer.transport.set_write_buffer_limits(0)  # `drain` waits until all is sent
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                letter, content = await received(reader)
                if letter == WANTED:
                    await self.report_figures()
                elif letter == OTHERS and self._others is not None and not self._others.done():
                    self._others.set_result(content)

    async def report_figures(self) -> None:
        """Send the metrics as far as they are known. Ignore a supervisor that has ended."""
        if self.figures is not None:
            await self._send(FIGURES, await asyncio.to_thread(self.figures))

    async def others(self, own: Figures) -> list[Figures]:
        """Return the metrics of all other workers, including ended ones. `own` is sent to others who ask. Raise
        `TimeoutError` if the supervisor does not answer."""
        async with self._asking:
            self._others = asyncio.get_running_loop().create_future()
            await self._send(ASKED, own)
            async with asyncio.timeout(ANSWER_SECONDS):
                figures: list[Figures] = json.loads(await self._others)
        return figures

    async def _send(self, letter: bytes, figures: Figures) -> None:
        if self._writer is not None:
            self._writer.write(message(letter, json.dumps(figures).encode()))
            with contextlib.suppress(OSError):
                await self._writer.drain()


@functools.cache
def supervisor_line() -> Line | None:
    """Return this worker's connection to its supervisor, or None if the process serves alone."""
    address = worker_address()
    return None if address is None else Line(address.line)


#: A worker can count 131,072 keys at once. If a bucket is full, the oldest window is replaced.
BUCKETS = 16_384
WAYS = 8
#: Bits of the count in a word. The others hold the beginning of the window, in hundredths of a second of the
#: machine's steady clock.
COUNT_BITS = 26
_MAX_COUNT = (1 << COUNT_BITS) - 1
_SECRET_BYTES = 32
_WORD = 8


def shared_memory_size(sections: int) -> int:
    """Return the bytes for so many sections. Pages without counts take no memory."""
    return _SECRET_BYTES + BUCKETS * sections * WAYS * 2 * _WORD


def make_shared_memory(sections: int) -> int:
    """Create the memory and return the descriptor of its file, which has no name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("forgelet")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, shared_memory_size(sections))
    os.pwrite(descriptor, os.urandom(_SECRET_BYTES), 0)
    return descriptor


class SharedWindows:
    """One worker's view of the memory that `descriptor` names. No other worker may write in `section`."""

    def __init__(self, descriptor: int, section: int, sections: int) -> None:
        self._memory = mmap.mmap(descriptor, shared_memory_size(sections))
        self._words = memoryview(self._memory).cast("Q")
        self._secret = self._memory[:_SECRET_BYTES]
        #: Bytes of a bucket's names, which its counts follow.
        self._names = sections * WAYS * _WORD
        self._own_offset = section * WAYS * _WORD

    def count(self, key: bytes, length: float) -> tuple[float, int]:
        """Count one more of `key`. Return for how many seconds its window has been open, and the count of all
        workers in it. A window ends after `length` seconds, and the next use begins another.

        Of two uses at the same moment, each may get a count that includes both; no count is too low.
        """
        name = hashlib.blake2b(self._secret + key, digest_size=_WORD).digest()
        first = _SECRET_BYTES + int.from_bytes(name) % BUCKETS * self._names * 2
        now, lasts = int(time.monotonic() * 100), int(length * 100)
        name_word = int.from_bytes(name, sys.byteorder)
        words, cell = self._words, self._cell(first, name)
        name_index, count_index = first // _WORD + cell, (first + self._names) // _WORD + cell
        own_word = words[count_index]
        if words[name_index] == name_word and own_word and now - (own_word >> COUNT_BITS) < lasts:
            if own_word & _MAX_COUNT < _MAX_COUNT:
                words[count_index] = own_word + 1
        else:
            began = self._window(first, name, now, lasts)[0]
            words[count_index] = 0  # a reader now sees nothing instead of another key's count
            words[name_index] = name_word
            words[count_index] = began << COUNT_BITS | 1
        began, count = self._window(first, name, now, lasts)
        return (now - began) / 100, count

    def _cell(self, first: int, name: bytes) -> int:
        """Return the place in the bucket where we count `name`: the one that has it, otherwise the oldest of ours."""
        start = first + self._own_offset
        offset = _offset_of(self._memory[start : start + WAYS * _WORD], name)
        if offset < 0:
            counts = (start + self._names) // _WORD
            own_words = self._words[counts : counts + WAYS].tolist()
            offset = own_words.index(min(own_words)) * _WORD
        return (self._own_offset + offset) // _WORD

    def _window(self, first: int, name: bytes, now: int, lasts: int) -> tuple[int, int]:
        """Return when the window began (now, if there is none), and the count of all workers in it."""
        began, count = now, 0
        names = self._memory[first : first + self._names]
        offset = _offset_of(names, name)
        while offset >= 0:
            word = self._words[(first + self._names + offset) // _WORD]
            if word and now - (word >> COUNT_BITS) < lasts:
                began, count = min(began, word >> COUNT_BITS), count + (word & _MAX_COUNT)
            offset = _offset_of(names, name, offset + _WORD)
        return began, count


def _offset_of(names: bytes, name: bytes, start: int = 0) -> int:
    """Return the offset of a word that is `name`, from `start` on, or -1."""
    offset = names.find(name, start)
    while offset % _WORD and offset >= 0:  # parts of two words
        offset = names.find(name, offset + 1)
    return offset


@functools.cache
def shared_windows() -> SharedWindows | None:
    """Return this worker's view, or None if the process serves alone and counts by itself."""
    address = worker_address()
    return None if address is None else SharedWindows(address.memory, address.section, address.sections)
