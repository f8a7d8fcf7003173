"""How the interpreter of a server works: when garbage is collected, what the system gets back of memory, and when a
thread hands over to another."""

import ctypes
import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Bytes of one object from which on the system gives and takes its memory: a body, a file, a diff.
LARGE_OBJECT: Final = 1024 * 1024
#: Free bytes at the end of what smaller objects have that are kept for the next ones.
KEPT_FREE: Final = 8 * 1024 * 1024
#: Heaps for all threads together, instead of eight for each processor: each keeps free memory of its own.
HEAPS: Final = 2
#: mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def return_large_objects() -> None:
    """Give the memory of each large object back to the system as soon as nobody uses the object.

    Otherwise glibc learns from the first large objects to expect more, and keeps the room of up to 32 MiB each, between
    small objects that are still in use. Other libraries keep their ways, and MALLOC_ variables of glibc go first.
    """
    if not any(name.startswith("MALLOC_") for name in os.environ):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
        mallopt(_M_MMAP_THRESHOLD, LARGE_OBJECT)
        mallopt(_M_TRIM_THRESHOLD, KEPT_FREE)
        mallopt(_M_ARENA_MAX, HEAPS)


#: Seconds after which a collection takes place even during work that never pauses.
LONGEST_UNCOLLECTED: Final = 60.0
_NEVER: Final = 1_000_000_000

_usual = gc.get_threshold()
_at_work = 0
_since = 0.0


@contextmanager
def large_work() -> Iterator[None]:
    """Postpone full garbage collections while the block creates very many objects. Young objects are still
    collected.

    A million objects that are all in use take 100 to 300 ms each time. Only for the event loop's thread, because
    blocks are counted.
    """
    global _at_work, _since, _usual  # noqa: PLW0603 (as the collector is the process's)
    now = time.monotonic()
    if not _at_work:
        _usual, _since = gc.get_threshold(), now
        gc.set_threshold(*_usual[:2], _NEVER)
    elif now - _since > LONGEST_UNCOLLECTED:
        _since = now
        gc.collect()
    _at_work += 1
    try:
        yield
    finally:
        _at_work -= 1
        if not _at_work:
            gc.set_threshold(*_usual)


#: Seconds after which a thread that computes hands the interpreter over. Python's 5 ms are a wait for the event loop
#: each time that it has to do with a socket, several times in a request, and for each thread that computes.
SWITCH_SECONDS: Final = 0.001


def tune_interpreter() -> None:
    """Set the interpreter up for a server that has started.

    All present objects are excluded from garbage collection: what a process creates at its start it needs until its
    end. Threads hand over the interpreter more often, which costs them 3 % of their time."""
    gc.freeze()
    sys.setswitchinterval(SWITCH_SECONDS)
