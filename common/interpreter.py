"""Tuning of a server's interpreter: garbage collection, the return of memory to the system, and the switching between
threads."""

import ctypes
import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Number of bytes from which on an object (a body, a file, a diff) gets its memory directly from the system.
LARGE_OBJECT: Final = 1024 * 1024
#: Maximum number of free bytes at the end of the heap that are kept for further small objects.
TRIM_THRESHOLD_BYTES: Final = 8 * 1024 * 1024
#: Number of heaps for all threads together, instead of eight for each processor, because each keeps free memory.
HEAPS: Final = 2
#: mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def return_large_objects() -> None:
    """Give the memory of each large object back to the system as soon as nobody uses the object.

    Otherwise glibc raises its threshold after the first large objects, and keeps the memory of objects up to 32 MiB
    between small objects that are still in use. Other C libraries do not change, and glibc's MALLOC_ variables take
    precedence.
    """
    if not any(name.startswith("MALLOC_") for name in os.environ):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
        mallopt(_M_MMAP_THRESHOLD, LARGE_OBJECT)
        mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
        mallopt(_M_ARENA_MAX, HEAPS)


#: Seconds after which a collection takes place even during work that never pauses.
LONGEST_UNCOLLECTED: Final = 60.0
_NEVER: Final = 1_000_000_000

_usual = gc.get_threshold()
_large_works = 0
_since = 0.0


@contextmanager
def large_work() -> Iterator[None]:
    """Postpone full garbage collections while the block creates very many objects. Young objects are still
    collected.

    Each full collection of a million objects in use takes 100 to 300 ms. Use this only in the event loop's thread,
    because blocks are counted without a lock.
    """
    global _large_works, _since, _usual  # noqa: PLW0603 (as the collector is the process's)
    now = time.monotonic()
    if not _large_works:
        _usual, _since = gc.get_threshold(), now
        gc.set_threshold(*_usual[:2], _NEVER)
    elif now - _since > LONGEST_UNCOLLECTED:
        _since = now
        gc.collect()
    _large_works += 1
    try:
        yield
    finally:
        _large_works -= 1
        if not _large_works:
            gc.set_threshold(*_usual)


#: Seconds after which a computing thread hands over the interpreter. With Python's 5 ms, the event loop would wait as
#: long after each use of a socket, several times in a request, and for each computing thread.
SWITCH_SECONDS: Final = 0.001


def tune_interpreter() -> None:
    """Set the interpreter up for a server that has started.

    All present objects are excluded from garbage collection, because a process needs them until its end. Threads hand
    over the interpreter more often, which costs them 3 % of their time."""
    gc.freeze()
    sys.setswitchinterval(SWITCH_SECONDS)
