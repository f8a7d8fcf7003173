"""An S3 of moto's in a process of its own, behind a proxy that can make it slow, refuse for it, or let it be gone."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from forgelet.local.processes import Child
from scripts.faults.proxy import Proxy
from tests.support.ports import free_port

BUCKET = "objects"
PROGRAM = "moto_server"
READY_SECONDS = 30.0


def is_there() -> bool:
    return shutil.which(PROGRAM) is not None


@contextlib.asynccontextmanager
async def object_store(logs: Path) -> AsyncIterator[Proxy]:
    """An empty bucket. Nothing of what it holds is on disk, and it ends with the block."""
    port = free_port()
    child = Child(PROGRAM, [PROGRAM, "-H", "127.0.0.1", "-p", str(port)], log=logs / "s3.log")
    try:
        async with Proxy(free_port(), lambda: port) as proxy, aiohttp.ClientSession() as http:
            await _made(http, f"http://127.0.0.1:{proxy.port}/{BUCKET}")
            yield proxy
    finally:
        child.stop()


async def _made(http: aiohttp.ClientSession, bucket: str) -> None:
    async with asyncio.timeout(READY_SECONDS):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.put(bucket) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)


def settings(proxy: Proxy) -> dict[str, str]:
    """The environment of an API server that keeps its objects there."""
    return {
        "FORGELET_API_OBJECT_STORE_URL": f"s3://{BUCKET}",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "faults",
        "AWS_SECRET_ACCESS_KEY": "faults",
    }
