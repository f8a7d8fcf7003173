"""The watchdog of the event loop reports the service's code and nothing else."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from pytest_aiohttp import AiohttpClient

from tests.support.watchdog import ROOT, Held, Watchdog, is_service

BUSY = """
def work(seconds):
    until = thread_time() + seconds
    while thread_time() < until:
        pass

async def serve(seconds):
    work(seconds)
"""
SECONDS = 0.04


@pytest.fixture(autouse=True)
def nobody_holds_the_loop() -> None:
    """Allow blocking the loop, which happens here on purpose."""


def defined_in(path: str) -> Any:
    """Return the functions of BUSY as if they were in that file."""
    names: dict[str, Any] = {"thread_time": time.thread_time}
    exec(compile(BUSY, ROOT + path, "exec"), names)
    return names


async def held_by(path: str, *, attempts: int) -> list[Held]:
    """Return the watchdog's findings about a task of that file; the first ones of this many attempts."""
    dog = Watchdog(SECONDS / 2)
    serve = defined_in(path)["serve"]
    with dog.watching():
        for _ in range(attempts):
            await asyncio.create_task(serve(SECONDS))
            if held := dog.taken():
                return held
    return []


@pytest.mark.parametrize("path", ["api_server/code/busy.py", "storage_edge/busy.py", "common/busy.py"])
async def test_service_code_that_holds_the_loop_is_named(path: str) -> None:
    (held,) = await held_by(path, attempts=200)
    assert held.seconds >= SECONDS * 0.9
    assert held.stack[-1].startswith(f"{ROOT}{path}:")
    assert held.stack[-1].endswith(" in work")
    assert str(held).splitlines()[0].endswith(" ms in one go on the event loop:")


async def test_a_request_that_holds_the_loop_is_named(aiohttp_client: AiohttpClient) -> None:
    work = defined_in("api_server/code/busy.py")["work"]
    app = web.Application()
    app.router.add_get("/", _answering(work))
    client = await aiohttp_client(app)
    dog = Watchdog(SECONDS / 2)
    places: list[str] = []
    with dog.watching():
        for _ in range(200):
            assert (await client.get("/")).status == 200
            places += [held.stack[-1] for held in dog.taken()]
            if any(place.startswith(f"{ROOT}api_server/code/busy.py:") for place in places):
                return
    pytest.fail(f"none of the moments at which it looked was in it: {places}")


def _answering(work: Callable[[float], None]) -> Callable[[web.Request], Awaitable[web.Response]]:
    names: dict[str, Any] = {"work": work, "Response": web.Response, "seconds": SECONDS}
    source = "async def answer(request):\n    work(seconds)\n    return Response()"
    exec(compile(source, f"{ROOT}api_server/code/handlers.py", "exec"), names)
    return names["answer"]  # type: ignore[no-any-return]


async def test_a_test_may_compute() -> None:
    assert await held_by("tests/busy.py", attempts=5) == []


async def test_what_only_waits_holds_nothing() -> None:
    dog = Watchdog(SECONDS / 2)
    asleep: dict[str, Any] = {"sleep": time.sleep}
    exec(compile("async def serve():\n    sleep(0.05)", ROOT + "api_server/asleep.py", "exec"), asleep)
    with dog.watching():
        await asyncio.create_task(asleep["serve"]())
    assert dog.taken() == []


def test_whose_work_it_is() -> None:
    service, test = f"{ROOT}api_server/app.py:1 in f", f"{ROOT}tests/test_x.py:1 in test"
    library = "/lib/aiohttp/web.py:1 in start"
    assert is_service((library, service, library))
    assert is_service((f"{ROOT}.venv/3.11.2/lib/aiohttp/web.py:1 in start", service))
    assert not is_service((test, service))
    assert not is_service((library,))
    assert not is_service((service, "<frozen importlib._bootstrap>:1 in _load"))
