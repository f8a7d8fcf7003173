"""When Python looks for garbage among all objects, which stops every thread for as long as there are many."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Seconds after which work that never pauses waits for a look all the same.
LONGEST: Final = 60.0
_NEVER: Final = 1_000_000_000

_usual = gc.get_threshold()
_at_work = 0
_since = 0.0


@contextmanager
def large_work() -> Iterator[None]:
    """Put off looks among all objects while the block makes very many of them; young ones are looked at as ever.

    A million objects that are all in use take 100 to 300 ms to look at, time after time. For the event loop's thread
    only: it counts the blocks that are entered.
    """
    global _at_work, _since, _usual  # noqa: PLW0603 (as the collector is the process's)
    now = time.monotonic()
    if not _at_work:
        _usual, _since = gc.get_threshold(), now
        gc.set_threshold(*_usual[:2], _NEVER)
    elif now - _since > LONGEST:
        _since = now
        gc.collect()
    _at_work += 1
    try:
        yield
    finally:
        _at_work -= 1
        if not _at_work:
            gc.set_threshold(*_usual)


def freeze_start() -> None:
    """Never look again at what there is now: what a process has made for its start it needs until its end."""
    gc.freeze()
