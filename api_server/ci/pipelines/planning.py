"""Planning configurations in threads, within limits, with the remote files that they include."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Concatenate, ParamSpec, TypeVar

import aiohttp
import attrs
from aiohttp import hdrs
from cachetools import TTLCache

from api_server.ci.config.context import Context, RemoteFile
from api_server.ci.config.errors import CiConfigError, FilesNeeded
from api_server.ci.config.includes import MAX_TOTAL_BYTES
from api_server.ci.config.yaml_text import MAX_BYTES
from api_server.expressions import Allowance, TooCostly, allowed
from api_server.outbound.client import OUTGOING_POLICY, OUTGOING_SESSION, RESOLVER
from api_server.outbound.destinations import HTTP_SCHEMES, BlockedError, written_url
from api_server.outbound.policy import check_url
from api_server.services import Key, Services
from api_server.settings import Settings
from api_server.state.errors import Unavailable
from api_server.web.rate_limits import WINDOW, RateLimiter
from common.concurrency import ConcurrencyLimiter, TooBusy
from common.interpreter import large_work

#: Files that are planned at a time, those of one project, and the seconds that others wait for their turn.
PLANNED_AT_A_TIME = 2
PLANNED_FOR_ONE = 1
PLANNING_TIMEOUT = 30
#: Maximum number of different regular expressions and path patterns in one file, and the maximum processor
#: time in seconds that they may take, in one file and in all files of one project per minute.
EXPRESSIONS = 1000
EXPRESSION_SECONDS = 2.0
EXPRESSION_SECONDS_A_MINUTE = 10.0


class Limits:
    """The limits of this process: how many pipelines are created and files checked in a minute, and how many
    are planned at a time."""

    def __init__(self, settings: Settings) -> None:
        self.rate = RateLimiter("pipelines", lambda: settings.pipeline_rate_limit)
        self.lint = RateLimiter("lint", lambda: settings.lint_rate_limit)
        self._expressions: TTLCache[int, Allowance] = TTLCache(maxsize=10_000, ttl=WINDOW)
        self.planning = ConcurrencyLimiter(PLANNED_AT_A_TIME, PLANNED_FOR_ONE, timeout=PLANNING_TIMEOUT)

    def expressions(self, project_id: int) -> Allowance:
        """Return the allowance for the regular expressions and path patterns of a file of the project."""
        within = self._expressions.get(project_id)
        if within is None:
            within = self._expressions[project_id] = Allowance(EXPRESSION_SECONDS_A_MINUTE)
        return Allowance(EXPRESSION_SECONDS, EXPRESSIONS, within)

    def forget(self) -> None:
        """Reset all counters."""
        self.rate.forget()
        self.lint.forget()
        self._expressions.clear()


LIMITS = Key[Limits]("pipeline_limits")


#: Seconds that one file may take, and that all files of one configuration may take.
FILE_SECONDS = 10
ALL_SECONDS = 30
#: Concurrent requests of one process, those for one project, and the seconds that others wait for their turn.
FETCHED_AT_A_TIME = 20
FETCHED_FOR_ONE = 10
FETCHING_TIMEOUT = 10
MAX_REDIRECTS = 3


@attrs.define
class _BytesLeft:
    """The number of bytes that the files of one configuration may still have."""

    remaining: int = MAX_TOTAL_BYTES


@attrs.frozen
class RemoteFiles:
    """Fetches remote files for one process."""

    services: Services
    limiter: ConcurrencyLimiter = attrs.field(
        factory=lambda: ConcurrencyLimiter(FETCHED_AT_A_TIME, FETCHED_FOR_ONE, timeout=FETCHING_TIMEOUT)
    )
    file_seconds: float = FILE_SECONDS

    async def fetch(self, urls: Iterable[str], project_id: int) -> Mapping[str, RemoteFile]:
        """Return the files at these URLs, fetched without credentials.

        The project's share of the fetches is limited. A failure at one URL is recorded in its `RemoteFile`;
        no errors are raised.
        """
        all_urls, allowance = list(urls), _BytesLeft()
        files = await asyncio.gather(*(self._file(url, project_id, allowance) for url in all_urls))
        return dict(zip(all_urls, files, strict=True))

    async def _file(self, url: str, project_id: int, allowance: _BytesLeft) -> RemoteFile:
        try:
            async with self.limiter.slot(project_id), asyncio.timeout(self.file_seconds):
                policy = await self.services[OUTGOING_POLICY]()
                await check_url(url, policy, self.services[RESOLVER], schemes=HTTP_SCHEMES)
                return await self._answer(url, allowance)
        except BlockedError as problem:
            return RemoteFile(problem=f"could not be fetched because it is blocked: {problem}!")
        except (TimeoutError, TooBusy):
            return RemoteFile(problem="could not be fetched because of a timeout error!")
        except (aiohttp.ClientError, OSError, ValueError):  # their texts may contain the URL
            return RemoteFile(problem="could not be fetched because of HTTP error!")

    async def _answer(self, url: str, allowance: _BytesLeft) -> RemoteFile:
        async with self.services[OUTGOING_SESSION].get(
            written_url(url),
            headers={hdrs.ACCEPT_ENCODING: "identity"},
            max_redirects=MAX_REDIRECTS,
            auto_decompress=False,
        ) as response:
            if response.status != 200:
                return RemoteFile(
                    problem=f"could not be fetched because of HTTP code `{response.status}` error!"
                )
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                allowance.remaining -= len(chunk)
                if allowance.remaining < 0:
                    return RemoteFile(problem=f"is too much: all are more than {MAX_TOTAL_BYTES} bytes!")
                if len(content) > MAX_BYTES:
                    return RemoteFile(problem=f"is too big: more than {MAX_BYTES} bytes!")
            return RemoteFile(content=bytes(content))


REMOTE_FILES = Key[RemoteFiles]("remote_files")


P = ParamSpec("P")
T = TypeVar("T")


async def plan_in_thread(
    limits: Limits,
    remote: RemoteFiles,
    planning: Callable[Concatenate[str, Context, P], T],
    text: str,
    context: Context,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run a function that plans a file, which may take a second, in a thread.

    Only a few run at a time, since they share Python's lock and the threads. The function is called again
    whenever it needs remote files, so that no thread waits for them. Raise `CiConfigError` if the files or
    the expressions take too long.
    """
    loop = asyncio.get_running_loop()
    allowance = limits.expressions(context.project_id)
    start = loop.time()
    while True:
        try:
            async with limits.planning.slot(context.project_id):
                with allowed(allowance), large_work():
                    return await asyncio.to_thread(planning, text, context, *args, **kwargs)
        except TooBusy as problem:
            raise Unavailable("the planning of pipelines") from problem
        except TooCostly as problem:
            raise CiConfigError(str(problem)) from None
        except FilesNeeded as needed:
            fetched = await remote.fetch(needed.urls, context.project_id)
        if loop.time() - start > ALL_SECONDS:
            raise CiConfigError("Resolving config took longer than expected")
        context = attrs.evolve(context, remote={**context.remote, **fetched})
