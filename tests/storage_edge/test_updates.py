"""What a validation brings is written to the answer that was validated, and to no other one in its place."""

import asyncio

from aiohttp import web

from tests.storage_edge.conftest import Clock, Origin, StartEdge

RAW = "/group/app/-/raw/main/README.md"


async def test_a_refusal_that_came_meanwhile_stays_one(start_edge: StartEdge, origin: Origin) -> None:
    """In the same instant as what was validated."""
    edge = await start_edge()
    origin.answers(b"content")
    await edge.get(RAW)
    await edge.settled()
    await edge.purge(prefixes=[RAW], soft=True)
    asked, gate = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.Response(status=404, headers={"Date": origin.date()})
        asked.set()
        await gate.wait()
        return web.Response(status=304, headers={"ETag": '"v1"', "Date": origin.date()})

    origin.handler = handler
    validating = asyncio.create_task(edge.get(RAW, "HEAD"))
    await asked.wait()
    assert (await edge.get(RAW)).status == 404
    gate.set()
    assert (await validating).status == 200
    await edge.settled()
    answer = await edge.get(RAW)
    assert (answer.status, "; hit" in answer.cache_status) == (404, True)


async def test_fields_are_not_given_to_what_another_process_has_put_there(
    start_edge: StartEdge, origin: Origin, clock: Clock
) -> None:
    first, second = await start_edge(), await start_edge()
    origin.answers(b"one", etag='"v1"')
    await first.get(RAW)
    await first.settled()
    clock.advance(61)
    origin.answers(b"another", etag='"v2"')
    await second.get(RAW)
    await second.settled()
    origin.answers(b"one", etag='"v1"')
    assert (await first.get(RAW)).body == b"one"
    await first.settled()
    answer = await (await start_edge()).get(RAW)
    assert (answer.headers["ETag"], answer.body) == ('"v2"', b"another")
