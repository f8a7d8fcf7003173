"""The edge as operators start it: a process of its own."""

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
    """A running process and its address."""

    process: asyncio.subprocess.Process
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def stop(self) -> list[dict[str, object]]:
        """Send SIGTERM; return the log after it was ready. It has to end with 0."""
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
    """Run an edge for the duration of the block, and kill it if it still runs at the end; `options` have priority.
    Without `origin`, the environment has it."""
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
            "FORGELET_EDGE_ORIGIN_CHECK_INTERVAL": "0",  # tests count the requests to the origin
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
