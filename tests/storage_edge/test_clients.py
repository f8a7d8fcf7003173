"""One client's requests do not take the origin away from the others, whatever they ask for."""

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web

from tests.storage_edge.conftest import Answer, Edge, Origin, StartEdge
from tests.storage_edge.talk import head, talk
from tests.support.waiting import until

NAMES = [f"/group/app/-/raw/main/{number}" for number in range(6)]
GREEDY = {"X_Forwarded_For": "198.51.100.1"}


@pytest.fixture
async def edge(start_edge: StartEdge) -> Edge:
    """Four requests to the origin at once, two for each client, which a proxy names."""
    return await start_edge(
        origin_connections=4,
        origin_connections_per_address=2,
        origin_patience=0.3,
        trusted_proxies=["127.0.0.1"],
    )


async def _come(origin: Origin, count: int) -> None:
    """Until so many requests have reached the origin."""
    await until(lambda: len(origin.requests) >= count)


def _ask(edge: Edge, *targets: str, **headers: str) -> list[asyncio.Task[Answer]]:
    return [asyncio.create_task(edge.get(target, **headers)) for target in targets]


@pytest.mark.parametrize(
    ("targets", "asked", "first"),
    [
        (NAMES[:5], {}, None),
        ([NAMES[0]] * 5, {"Cache_Control": "no-store"}, None),
        ([f"{NAMES[0]}?token={letter}" for letter in "abcde"], {}, f"{NAMES[0]}?token=x"),
    ],
    ids=["cold", "not to be stored", "private"],
)
async def test_one_client_has_a_share_of_the_origin(
    edge: Edge, origin: Origin, targets: list[str], asked: dict[str, str], first: str | None
) -> None:
    origin.answers(cache_control="private, max-age=60")
    if first is not None:
        await edge.get(first)
    gate = _slow_bodies(origin)
    greedy = _ask(edge, *targets, **GREEDY, **asked)
    before = 0 if first is None else 1
    await _come(origin, before + 2)
    refusals = [await each for each in await _first_done(greedy, 3)]
    refused = refusals[0]
    assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
    assert refused.headers["Cache-Control"] == "no-store"
    assert refused.body == b"Too many requests are being passed on; try again later.\n"
    other = _ask(edge, NAMES[5], X_Forwarded_For="203.0.113.7")
    await _come(origin, before + 3)
    gate.set()
    assert (await other[0]).status == 200
    assert sorted([(await each).status for each in greedy]) == [200, 200, 503, 503, 503]
    assert len(origin.requests) == before + 3


async def _first_done(tasks: list[asyncio.Task[Answer]], count: int) -> list[asyncio.Task[Answer]]:
    """Those that are done when so many are."""
    while len(done := [task for task in tasks if task.done()]) < count:
        await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
    return done


def _slow_bodies(origin: Origin) -> asyncio.Event:
    """From now on the origin's answers are others, and end when the event that this gives is set."""
    gate = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        fields = {"Cache-Control": "private, max-age=60", "Content-Length": "7", "Date": origin.date()}
        response = web.StreamResponse(headers=fields)
        await response.prepare(request)
        await response.write(b"con")
        await gate.wait()
        await response.write(b"tent")
        return response

    origin.handler = handler
    return gate


async def test_all_clients_together_have_what_the_operator_allows(edge: Edge, origin: Origin) -> None:
    origin.answers()
    _, gate = origin.held_back()
    addresses = ("192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.4")
    asked = [
        _ask(edge, target, X_Forwarded_For=address)[0]
        for target, address in zip(NAMES, addresses, strict=True)
    ]
    await _come(origin, 4)
    await _first_done(asked, 2)
    gate.set()
    assert sorted([(await each).status for each in asked]) == [200, 200, 200, 200, 503, 503]


async def test_who_waits_for_a_place_gets_it(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge(origin_connections_per_address=1, origin_patience=20.0)
    origin.answers()
    begun, gate = origin.held_back()
    asked = _ask(edge, *NAMES)
    await begun.wait()
    gate.set()
    assert [(await each).status for each in asked] == [200] * len(NAMES)


async def test_who_joins_a_request_that_found_no_place_asks_for_herself(edge: Edge, origin: Origin) -> None:
    origin.answers()
    _, gate = origin.held_back()
    greedy = _ask(edge, *NAMES[:3], **GREEDY)
    await _come(origin, 2)
    taken = {request.path for request in origin.requests}
    (waiting,) = set(NAMES[:3]) - taken
    other = _ask(edge, waiting, X_Forwarded_For="203.0.113.7")
    await _come(origin, 3)
    gate.set()
    assert (await other[0]).status == 200
    assert sorted([(await each).status for each in greedy]) == [200, 200, 503]


def _breaking(origin: Origin) -> Callable[[], None]:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"too little")
        assert request.transport is not None
        request.transport.abort()
        return response

    return lambda: setattr(origin, "handler", handler)


async def test_places_are_given_back_however_a_request_ends(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge(origin_connections=1, origin_connections_per_address=1, origin_patience=0.0)
    breaking = _breaking(origin)
    ways: list[tuple[Callable[[], None], str, str, dict[str, str]]] = [
        (origin.answers, "GET", "/a", {}),
        (origin.answers, "HEAD", "/b", {}),
        (lambda: origin.answers(status=404), "GET", "/c", {}),
        (lambda: origin.answers(status=500), "GET", "/d", {}),
        (lambda: origin.answers(cache_control="private"), "GET", "/e?token=a", {}),
        (lambda: origin.answers(cache_control="private"), "GET", "/e?token=a", {}),
        (lambda: origin.answers(cache_control="private", etag='"v2"'), "GET", "/e?token=a", {}),
        (lambda: origin.answers(status=404), "GET", "/e?token=b", {}),
        (lambda: origin.answers(cache_control="no-store"), "GET", "/f", {}),
        (lambda: origin.answers(cache_control="no-store"), "GET", "/f", {"If_None_Match": '"v1"'}),
        (origin.answers, "GET", "/g", {"Range": "bytes=0-1"}),
        (breaking, "GET", "/h", {}),
        (breaking, "GET", "/i", {"Cache_Control": "no-store"}),
    ]
    for prepare, method, path, fields in ways:
        prepare()
        try:
            answer = await edge.get(f"/group/app/-/raw/main{path}", method, **fields)
        except Exception:  # what has begun and breaks cuts the connection
            answer = None
        await edge.settled()
        assert answer is None or answer.status != 503, (method, path, fields)
    origin.answers(b"x" * 20_000_000, cache_control="no-store")
    async with talk(edge.port, takes_little=True) as client:
        client.writer.write(head("/group/app/-/raw/main/j"))
        await client.reader.readuntil(b"\r\n\r\n")
        assert (await edge.get("/group/app/-/raw/main/k")).status == 503
        client.writer.transport.abort()
    async with asyncio.timeout(20):
        while (await edge.get("/group/app/-/raw/main/k")).status == 503:
            await asyncio.sleep(0.01)
