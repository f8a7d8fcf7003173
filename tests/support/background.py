"""The services that long-running work needs, for tests that run such work without a server."""

import contextlib
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry

from common.lifecycle import BackgroundTasks, Shutdown


@contextlib.asynccontextmanager
async def watched(seconds: float = 5) -> AsyncIterator[tuple[BackgroundTasks, Shutdown]]:
    """Yield the arguments of `working`; at the end of the block the shutdown begins, which may take this many
    seconds."""
    tasks, shutdown = BackgroundTasks(CollectorRegistry()), Shutdown()
    try:
        yield tasks, shutdown
    finally:
        shutdown.begin(seconds)
        await tasks.close()
