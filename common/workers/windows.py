"""What workers count together: how often something was done in windows of time, in memory that all of them share.

Nobody locks. Each worker counts in a section of its own and reads those of the others. What it has counted of one key
is one word (when the window began, how many came), beside one that names the key, and processors write words as a
whole. Who is killed holds nothing: what it has counted stays there until its window ends.
"""

import functools
import hashlib
import mmap
import os
import sys
import tempfile
import time

from common.workers.place import place

#: Keys of which a worker knows at once: 131,072. Where a bucket is full, the oldest window is forgotten.
BUCKETS = 16_384
WAYS = 8
#: Of a counting word; the rest is when the window began, in hundredths of a second of the machine's steady clock.
COUNT_BITS = 26
_MOST = (1 << COUNT_BITS) - 1
_SECRET_BYTES = 32
_WORD = 8


def size(sections: int) -> int:
    """Bytes for so many sections. Pages that nobody has counted in take no memory."""
    return _SECRET_BYTES + BUCKETS * sections * WAYS * 2 * _WORD


def make(sections: int) -> int:
    """New memory; the number of a file that has no name."""
    if hasattr(os, "memfd_create"):
        made = os.memfd_create("forgelet")
    else:
        with tempfile.TemporaryFile() as file:
            made = os.dup(file.fileno())
    os.truncate(made, size(sections))
    os.pwrite(made, os.urandom(_SECRET_BYTES), 0)
    return made


class SharedWindows:
    """One worker's view of the memory that `descriptor` names. Nobody else may write in `section` meanwhile."""

    def __init__(self, descriptor: int, section: int, sections: int) -> None:
        self._memory = mmap.mmap(descriptor, size(sections))
        self._words = memoryview(self._memory).cast("Q")
        self._secret = self._memory[:_SECRET_BYTES]
        #: Bytes of a bucket's names, which its counts follow; ours among them.
        self._names = sections * WAYS * _WORD
        self._ours = section * WAYS * _WORD

    def count(self, key: bytes, length: float) -> tuple[float, int]:
        """Counts one more of `key`: for how many seconds its window is open, and how many came in it, to all workers.
        One that has been open for `length` seconds is over, and the next begins with whoever comes then.

        Two who come at the same moment may both be told of both, and neither is told of too few.
        """
        name = hashlib.blake2b(self._secret + key, digest_size=_WORD).digest()
        first = _SECRET_BYTES + int.from_bytes(name) % BUCKETS * self._names * 2
        now, lasts = int(time.monotonic() * 100), int(length * 100)
        named = int.from_bytes(name, sys.byteorder)
        words, cell = self._words, self._cell(first, name)
        known, counting = first // _WORD + cell, (first + self._names) // _WORD + cell
        mine = words[counting]
        if words[known] == named and mine and now - (mine >> COUNT_BITS) < lasts:
            if mine & _MOST < _MOST:
                words[counting] = mine + 1
        else:
            began = self._seen(first, name, now, lasts)[0]
            words[counting] = 0  # whoever looks meanwhile sees nothing, and not another's count
            words[known] = named
            words[counting] = began << COUNT_BITS | 1
        began, count = self._seen(first, name, now, lasts)
        return (now - began) / 100, count

    def _cell(self, first: int, name: bytes) -> int:
        """The place in the bucket where we count `name`: where it has been counted, else the oldest of ours."""
        start = first + self._ours
        at = _place(self._memory[start : start + WAYS * _WORD], name)
        if at < 0:
            counts = (start + self._names) // _WORD
            ours = self._words[counts : counts + WAYS].tolist()
            at = ours.index(min(ours)) * _WORD
        return (self._ours + at) // _WORD

    def _seen(self, first: int, name: bytes, now: int, lasts: int) -> tuple[int, int]:
        """When the window began (now, where there is none), and what all have counted in it."""
        began, count = now, 0
        names = self._memory[first : first + self._names]
        at = _place(names, name)
        while at >= 0:
            word = self._words[(first + self._names + at) // _WORD]
            if word and now - (word >> COUNT_BITS) < lasts:
                began, count = min(began, word >> COUNT_BITS), count + (word & _MOST)
            at = _place(names, name, at + _WORD)
        return began, count


def _place(names: bytes, name: bytes, start: int = 0) -> int:
    """Of a word that is `name`, from `start` on; -1: there is none."""
    at = names.find(name, start)
    while at % _WORD and at >= 0:  # parts of two words
        at = names.find(name, at + 1)
    return at


@functools.cache
def shared_windows() -> SharedWindows | None:
    """This worker's; None where a process serves alone, and counts for itself."""
    mine = place()
    return None if mine is None else SharedWindows(mine.memory, mine.section, mine.sections)
