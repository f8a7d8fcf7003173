"""What the service calls: a receiver of deliveries and a mirror's target, which can be told to misbehave."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

import attrs
from aiohttp import web

from tests.api_server.mirrors.repositories import BareRepository
from tests.api_server.mirrors.targets import PASSWORD, USER, HttpTarget, serve_http
from tests.api_server.status_checks.receiver import (
    Behaviour,
    Receiver,
    answer,
    reset,
    running_receiver,
)

#: Longer than anybody waits for an answer here.
HANG_SECONDS = 30.0


async def hang(_: web.Request) -> web.StreamResponse:
    """Says nothing for a long time, and then that it was in vain."""
    await asyncio.sleep(HANG_SECONDS)
    return web.Response(status=504)


async def garbage(request: web.Request) -> web.StreamResponse:
    """Says something that is no HTTP."""
    assert request.transport is not None
    request.transport.write(b"\x16\x03\x01\x00\xee nothing that anybody understands\r\n\r\n")
    request.transport.close()
    return web.Response()


MISBEHAVIOUR: dict[str, Behaviour] = {
    "hangs": hang,
    "500": answer(500, "no"),
    "resets": reset,
    "garbage": garbage,
}


@attrs.frozen
class Outside:
    """`receiver` takes deliveries at `receiver.url`; `mirrored` has the targets' repositories."""

    receiver: Receiver
    #: Ids of deliveries that have been answered with 204.
    delivered: set[str]
    target: HttpTarget
    target_port: int
    mirrored: Path
    #: The host in URLs.
    host: str

    @property
    def receiver_url(self) -> str:
        return self.receiver.url.replace("127.0.0.1", self.host)

    def new_target(self, name: str) -> str:
        """Makes an empty repository; its URL with credentials."""
        BareRepository.create(self.mirrored / f"{name}.git")
        return f"http://{USER}:{quote(PASSWORD, safe='')}@{self.host}:{self.target_port}/{name}.git"

    @contextlib.contextmanager
    def misbehaving(self, part: str, how: str) -> Iterator[None]:
        """The receiver, or the target, does so with each request of this time."""
        if part == "receiver":
            before, self.receiver.answers = self.receiver.answers, [MISBEHAVIOUR[how]]
        else:
            self.target.before = MISBEHAVIOUR[how]
        try:
            yield
        finally:
            if part == "receiver":
                self.receiver.answers = before
            self.target.before = None


@contextlib.asynccontextmanager
async def outside(host: str) -> AsyncIterator[Outside]:
    """Both, on ports of loopback, by this name of it."""
    with tempfile.TemporaryDirectory(prefix="fgl-faults-targets-") as folder:
        target = HttpTarget(Path(folder))
        delivered: set[str] = set()

        async def take(request: web.Request) -> web.StreamResponse:
            delivered.add(request.headers["webhook-id"])
            return web.Response(status=204)

        async with running_receiver() as receiver, serve_http(target) as server:
            receiver.answers = [take]
            assert server.port is not None
            yield Outside(receiver, delivered, target, server.port, Path(folder), host)
