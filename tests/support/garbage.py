"""Memory after the end of something: garbage that has to be collected, and bytes that are still held."""

import contextlib
import gc
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator


async def garbage_of(leave: Callable[[], Awaitable[None]]) -> dict[str, int]:
    """Let clients leave; return how many objects of connections had to be collected, by kind."""
    await leave()
    gc.disable()
    gc.freeze()  # the objects that exist now
    try:
        for _ in range(3):
            await leave()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = Counter(type(each).__name__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()
    return {kind: found[kind] for kind in ("Connection", "Reader", "Request", "Task") if found[kind]}


@contextlib.contextmanager
def nothing_collected() -> Iterator[Callable[[], int]]:
    """Collect no garbage during the block. Yield a function that returns how many bytes of the block are still held."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
