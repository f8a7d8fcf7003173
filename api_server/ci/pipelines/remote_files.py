"""`include:remote`: fetching files of the web, within bounds, for configurations that name them."""

import asyncio
from collections.abc import Iterable, Mapping

import aiohttp
import attrs
from aiohttp import hdrs, web

from api_server.ci.config.context import RemoteFile
from api_server.ci.config.includes import MAX_TOTAL_BYTES
from api_server.ci.config.yaml_text import MAX_BYTES
from api_server.outbound.client import OUTGOING_POLICY, OUTGOING_SESSION, RESOLVER
from api_server.outbound.destinations import HTTP_SCHEMES, BlockedError, written_url
from api_server.outbound.policy import check_url
from api_server.web.context import App
from common.concurrency import ConcurrencyLimiter, TooBusy

#: Seconds that one file may take, and from when on they are too many for one configuration.
FILE_SECONDS = 10
ALL_SECONDS = 30
#: Requests of one process at a time, those for one project, and the seconds that others wait for their turn.
FETCHED_AT_A_TIME = 20
FETCHED_FOR_ONE = 10
PATIENCE = 10
MAX_REDIRECTS = 3


@attrs.define
class _Allowance:
    """Bytes that the files of one configuration may still have together."""

    left: int = MAX_TOTAL_BYTES


@attrs.frozen
class RemoteFiles:
    """Fetches files of the web for one process."""

    app: App
    limiter: ConcurrencyLimiter = attrs.field(
        factory=lambda: ConcurrencyLimiter(FETCHED_AT_A_TIME, FETCHED_FOR_ONE, patience=PATIENCE)
    )
    file_seconds: float = FILE_SECONDS

    async def fetch(self, urls: Iterable[str], project_id: int) -> Mapping[str, RemoteFile]:
        """What is at these URLs, each as anybody may read it, for a project, which does not keep others from fetching;
        nothing is raised for what goes wrong at one."""
        wanted, allowance = list(urls), _Allowance()
        files = await asyncio.gather(*(self._file(url, project_id, allowance) for url in wanted))
        return dict(zip(wanted, files, strict=True))

    async def _file(self, url: str, project_id: int, allowance: _Allowance) -> RemoteFile:
        try:
            async with self.limiter.place(project_id), asyncio.timeout(self.file_seconds):
                policy = await self.app[OUTGOING_POLICY]()
                await check_url(url, policy, self.app[RESOLVER], schemes=HTTP_SCHEMES)
                return await self._answer(url, allowance)
        except BlockedError as problem:
            return RemoteFile(problem=f"could not be fetched because it is blocked: {problem}!")
        except (TimeoutError, TooBusy):
            return RemoteFile(problem="could not be fetched because of a timeout error!")
        except (aiohttp.ClientError, OSError, ValueError):  # their texts may have the URL in them
            return RemoteFile(problem="could not be fetched because of HTTP error!")

    async def _answer(self, url: str, allowance: _Allowance) -> RemoteFile:
        async with self.app[OUTGOING_SESSION].get(
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
            async for piece in response.content.iter_any():
                content += piece
                allowance.left -= len(piece)
                if allowance.left < 0:
                    return RemoteFile(problem=f"is too much: all are more than {MAX_TOTAL_BYTES} bytes!")
                if len(content) > MAX_BYTES:
                    return RemoteFile(problem=f"is too big: more than {MAX_BYTES} bytes!")
            return RemoteFile(content=bytes(content))


REMOTE_FILES = web.AppKey("remote_files", RemoteFiles)
