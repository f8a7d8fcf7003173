"""An edge of a server for tests forgets everything, and its clock is moved; others have no such addresses."""

import pytest

from tests.storage_edge.conftest import PURGE_TOKEN, Edge, Origin, StartEdge
from tests.storage_edge.talk import RAW


async def steer(edge: Edge, name: str, body: object, token: str = PURGE_TOKEN) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    async with edge.session.post(f"{edge.url}/-/testing/{name}", json=body, headers=headers) as answer:
        return answer.status


async def test_what_is_stored_grows_old_with_the_clock(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge(testing=True)
    origin.answers(b"hello")
    asked = []
    for ahead in (0, 59, 61):
        assert await steer(edge, "clock", {"ahead": ahead}) == 204
        assert (await edge.get(RAW)).body == b"hello"
        await edge.settled()
        asked.append(sum(request.method == "GET" for request in origin.requests))
    assert asked == [1, 1, 2]


async def test_a_reset_forgets_everything_and_sets_the_clock_back(
    start_edge: StartEdge, origin: Origin
) -> None:
    edge = await start_edge(testing=True, client_rate=0.001, client_burst=3)
    origin.answers(b"before")
    assert await steer(edge, "clock", {"ahead": 100}) == 204
    for _ in range(3):
        await edge.get(RAW)
        await edge.settled()
    assert (await edge.get(RAW)).status == 429
    origin.answers(b"after", etag='"v2"')
    assert await steer(edge, "reset", {"ahead": 0}) == 204
    answer = await edge.get(RAW)
    assert (answer.status, answer.body) == (200, b"after")


@pytest.mark.parametrize("name", ["clock", "reset"])
async def test_only_who_has_the_purge_token_steers_and_only_an_edge_for_tests(
    start_edge: StartEdge, name: str
) -> None:
    edge = await start_edge(testing=True)
    assert await steer(edge, name, {"ahead": 0}, token="wrong") == 401
    assert [await steer(edge, name, body) for body in ({}, [], {"ahead": "1"})] == [400, 400, 400]
    usual = await start_edge(data_dir=None)
    assert await steer(usual, name, {"ahead": 0}) == 404
