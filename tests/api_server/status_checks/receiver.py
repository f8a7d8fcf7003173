"""A service that receives deliveries: it stores them and answers as a test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer


@attrs.frozen
class Received:
    """One request, with its raw body."""

    headers: Any
    body: bytes
    path: str

    @property
    def payload(self) -> Any:
        return orjson.loads(self.body)


CLOSING = web.AppKey("closing", asyncio.Event)

Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]


@attrs.define
class Receiver:
    """A receiver that answers each request with the next of `answers`, of which the last one is repeated (204 if there
    is none)."""

    url: str = ""
    received: list[Received] = attrs.field(factory=list)
    answers: list[Behaviour] = attrs.field(factory=list)
    #: Ends hanging answers at the end of the test.
    closing: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.received.append(Received(request.headers, await request.read(), request.path_qs))
        if not self.answers:
            return web.Response(status=204)
        behaviour = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await behaviour(request)


def answer(status: int, body: str = "", **headers: str) -> Behaviour:
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def behave(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body, headers=named)

    return behave


async def reset(request: web.Request) -> web.StreamResponse:
    """Close the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def answer_late(status: int) -> Behaviour:
    async def behave(request: web.Request) -> web.StreamResponse:
        await request.app[CLOSING].wait()
        return web.Response(status=status)

    return behave


#: Never answer.
hang = answer_late(200)


async def never_end(request: web.Request) -> web.StreamResponse:
    """Answer 200, and never end the body."""
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        while not request.app[CLOSING].is_set():
            await response.write(b"x" * 4096)
    return response


@contextlib.asynccontextmanager
async def running_receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app[CLOSING] = receiver.closing
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    async with TestServer(app, host="127.0.0.1") as server:
        receiver.url = f"http://127.0.0.1:{server.port}/hook"
        try:
            yield receiver
        finally:
            receiver.closing.set()
