"""How much of repositories is read at once, and for how long: the git processes that callers wait for.

Reads that end by themselves (lists, differences) have a time limit. Files that are too large for the memory flow as
fast as their reader takes them, which may be slow, and so have places of their own.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from api_server.git.errors import GitTimeoutError, OutOfMemoryError, OutputTooLargeError
from api_server.settings import Settings
from api_server.web import context
from api_server.web.errors import ApiError
from api_server.web.routes import CALLER
from common.concurrency import ConcurrencyLimiter

READS = web.AppKey("repository_reads", ConcurrencyLimiter)
STREAMS = web.AppKey("file_streams", ConcurrencyLimiter)


def setup(app: web.Application, settings: Settings) -> None:
    patience = settings.repository_patience
    app[READS] = ConcurrencyLimiter(
        settings.repository_reads, settings.repository_reads_per_caller, patience=patience
    )
    app[STREAMS] = ConcurrencyLimiter(
        settings.file_streams, settings.file_streams_per_caller, patience=patience
    )


@asynccontextmanager
async def reading(request: web.Request) -> AsyncIterator[None]:
    """A place for git processes that read for the caller, which are killed when they take too long.

    Raises `TooBusy` where no place becomes free, and 503 for what cannot be read in time.
    """
    limit = context.settings(request).repository_read_timeout
    try:
        async with request.config_dict[READS].place(*counted_for(request)), asyncio.timeout(limit):
            yield
    except (TimeoutError, GitTimeoutError):
        raise _refused(f"reading the repository took longer than {limit} seconds") from None
    except OutOfMemoryError:
        raise _refused("reading the repository takes more memory than there is for it") from None
    except OutputTooLargeError:
        raise _refused("the repository has names that are too long to be read") from None


@asynccontextmanager
async def streaming(
    request: web.Request, *, user_id: int | None = None, from_storage: bool = False
) -> AsyncIterator[None]:
    """A place for a file that flows to the caller, or to `user_id` where the route knows none. Raises `TooBusy`."""
    async with request.config_dict[STREAMS].place(*counted_for(request, user_id, from_storage=from_storage)):
        yield


def counted_for(
    request: web.Request, user_id: int | None = None, *, from_storage: bool = False
) -> Sequence[Hashable]:
    """Who is counted: the user (by default the caller), or the address of a stranger.

    What the external storage fetches for strangers counts in all only: it asks for all of them.
    """
    if user_id is None and (caller := request.get(CALLER)) is not None:
        user_id = caller.user_id
    if user_id is not None:
        return [("user", user_id)]
    return [] if from_storage else [("address", request.remote)]


def _refused(reason: str) -> ApiError:
    return ApiError(503, {"message": f"503 Service Unavailable - {reason}"})
