"""The edge as its operator starts it: a process of its own."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import attrs

from tests.storage_edge.conftest import PURGE_TOKEN, Origin


@attrs.frozen
class EdgeProcess:
    """A running process and where it listens."""

    process: asyncio.subprocess.Process
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def stop(self) -> list[dict[str, object]]:
        """SIGTERM; its log after that it was ready. It must end with 0."""
        self.process.terminate()
        assert self.process.stderr is not None
        log = [json.loads(line) for line in (await self.process.stderr.read()).splitlines()]
        assert await self.process.wait() == 0
        return log


@contextlib.asynccontextmanager
async def edge_process(
    origin: Origin | None,
    directory: Path,
    *options: str,
    environment: Mapping[str, str] = MappingProxyType({}),
    command: Sequence[str] = ("storage_edge",),
) -> AsyncIterator[EdgeProcess]:
    """Runs until it listens, and kills it at the end if it still runs; `options` count before ours. Where there is no
    `origin`, the environment says."""
    at = () if origin is None else ("--origin", origin.url)
    token = directory.with_name(f"{directory.name}-purge-token")
    token.write_text(f"{PURGE_TOKEN}\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command, "--port", "0", *at,
        "--data-dir", str(directory), "--log-format", "json", *options,
        stderr=asyncio.subprocess.PIPE,
        env={
            "FORGELET_EDGE_PURGE_TOKEN_FILE": str(token),
            **environment,
            "FORGELET_EDGE_ORIGIN_CHECK_INTERVAL": "0",  # tests count what the origin is asked
        },
    )  # fmt: skip
    assert process.stderr is not None
    try:
        while "port" not in (event := json.loads(await process.stderr.readline())):
            pass
        yield EdgeProcess(process, event["port"])
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.stderr.read()
        await process.wait()
