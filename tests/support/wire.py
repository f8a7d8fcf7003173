"""The API server or the edge as clients see them, with requests that a test sends byte by byte."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import orjson

from common.connections import Connections
from common.serving import serving
from storage_edge import app
from storage_edge.app import served as edge_served
from storage_edge.settings import Settings as EdgeSettings
from tests.support.forge import ROOT_TOKEN, Forge, running_forge
from tests.support.ports import free_port

PURGE_TOKEN = "purge-secret"


@attrs.frozen
class Talk:
    """One connection; the test decides when bytes are sent."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)

    async def answer(self) -> tuple[int, Any]:
        """Return status and body of the next answer, which is JSON."""
        head = await self.head()
        length = re.search(rb"\r\nContent-Length: (\d+)\r\n", head)
        body = await asyncio.wait_for(self.reader.readexactly(int(length[1]) if length else 0), 20)
        return int(head.split()[1]), orjson.loads(body)

    async def rest(self) -> bytes:
        """Return everything that is received until the server closes the connection."""
        received = b""
        with contextlib.suppress(ConnectionError):
            while piece := await asyncio.wait_for(self.reader.read(2**16), 20):
                received += piece
        return received


@contextlib.asynccontextmanager
async def talk(port: int, *, takes_little: bool = False) -> AsyncIterator[Talk]:
    """Open a connection to a port of this machine; with `takes_little` the system buffers few unread bytes."""
    plug = socket.socket()
    if takes_little:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
    plug.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plug, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=plug, limit=10_000 if takes_little else 2**16)
    try:
        yield Talk(reader, writer)
    finally:
        writer.transport.abort()


def request(method: str, path: str, *fields: str) -> bytes:
    """Return the head of a request."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *fields, "", ""]).encode()


@attrs.frozen
class Server:
    """A server in this process: its connections, and the path and the credentials of a POST that it accepts."""

    port: int
    connections: Connections
    posts: tuple[str, ...]
    #: The API server, if the process is one.
    forge: Forge | None = None

    def post(self, *fields: str) -> bytes:
        """Return the head of a request with a JSON body."""
        path, *credentials = self.posts
        return request("POST", path, "Content-Type: application/json", *credentials, *fields)


@contextlib.asynccontextmanager
async def running(
    process: str, new_database: Callable[[], str], folder: Path, **settings: Any
) -> AsyncIterator[Server]:
    """Run the `api` or the `edge`; the edge's origin does not exist."""
    if process == "api":
        async with running_forge(new_database(), folder, work=False, **settings) as forge:
            served = forge.server.served  # type: ignore[attr-defined]
            posts = ("/api/v4/groups", f"PRIVATE-TOKEN: {ROOT_TOKEN}")
            yield Server(forge.settings.port, served.endpoint.connections, posts, forge)
        return
    chosen = EdgeSettings(
        port=0,
        origin=f"http://127.0.0.1:{free_port()}",
        purge_token=PURGE_TOKEN,
        data_dir=folder,
        access_log=False,
        shutdown_timeout=0.2,
        **settings,
    )
    served = edge_served(app.create_app(chosen), chosen)
    async with serving(served) as (_, port):
        posts = ("/-/purge", f"Authorization: Bearer {PURGE_TOKEN}")
        yield Server(port, served.endpoint.connections, posts)
