"""What keeps up long-running work, for a test that runs some without a server."""

import contextlib
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry

from common.lifecycle import BackgroundTasks, Shutdown


@contextlib.asynccontextmanager
async def watched(seconds: float = 5) -> AsyncIterator[tuple[BackgroundTasks, Shutdown]]:
    """Arguments of `working`; at the end of the block the shutdown begins, and may take so many seconds."""
    tasks, shutdown = BackgroundTasks(CollectorRegistry()), Shutdown()
    try:
        yield tasks, shutdown
    finally:
        shutdown.begin(seconds)
        await tasks.close()
