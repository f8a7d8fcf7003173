"""Purges: when they have answered, nothing from before is served."""

from pathlib import Path

import attrs
import orjson
import pytest

from storage_edge.client.handlers import STORE
from storage_edge.storage import purges
from storage_edge.storage.purges import REMEMBERED, Ledger, Purge
from tests.storage_edge.conftest import Clock, Edge, Origin, StartEdge

RAW = "/group/app/-/raw/main/README.md"
OTHER = "/group/other/-/raw/main/README.md"


@attrs.frozen
class Named:
    """What of a response a purge looks at."""

    target: str
    status: int
    surrogate_keys: frozenset[str]


async def _fill(edge: Edge, origin: Origin) -> None:
    origin.answers(b"old", cache_control="max-age=600", Surrogate_Key="project-1 project-1-ref-a")
    await edge.get(RAW)
    origin.answers(b"old", cache_control="max-age=600", Surrogate_Key="project-2")
    await edge.get(OTHER)
    await edge.settled()
    origin.answers(b"new", etag='"v2"', cache_control="max-age=600", Surrogate_Key="project-1")


@pytest.mark.parametrize(
    "document",
    [
        {"keys": ["project-1"]},
        {"keys": ["project-1-ref-a", "project-9"]},
        {"urls": [RAW]},
        {"urls": [f"https://cdn.example.org{RAW}?token=x"]},
        {"urls": [f"{RAW}?from=https://example.org/"]},
        {"prefixes": ["/group/app/"]},
    ],
)
async def test_a_purge_concerns_what_it_names_and_nothing_else(
    edge: Edge, origin: Origin, document: dict[str, object]
) -> None:
    await _fill(edge, origin)
    assert await edge.purge(**document) == 1
    assert (await edge.get(RAW)).body == b"new"
    assert (await edge.get(OTHER)).body == b"old"


async def test_a_soft_purge_makes_stale(edge: Edge, origin: Origin) -> None:
    await _fill(edge, origin)
    origin.answers(b"old", cache_control="max-age=600", Surrogate_Key="project-1")
    assert await edge.purge(keys=["project-1"], soft=True) == 1
    answer = await edge.get(RAW)
    assert (answer.body, "fwd-status=304" in answer.cache_status) == (b"old", True)
    assert "; hit; ttl" in (await edge.get(RAW)).cache_status


async def test_a_soft_purge_survives_a_restart(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge()
    await _fill(edge, origin)
    await edge.purge(keys=["project-1"], soft=True)
    again = await start_edge()
    assert (await again.get(RAW)).body == b"new"


async def test_a_purge_reaches_all_processes_of_a_data_directory(
    start_edge: StartEdge, origin: Origin
) -> None:
    one, two = await start_edge(), await start_edge()
    await _fill(one, origin)
    assert (await two.get(RAW)).body == b"old"
    await one.purge(keys=["project-1"])
    assert (await two.get(RAW)).body == b"new"


async def test_a_process_that_was_idle_for_more_purges_than_are_kept_forgets_everything(
    start_edge: StartEdge, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purges, "SLOTS", 2)
    busy, idle = await start_edge(), await start_edge()
    await _fill(busy, origin)
    assert (await idle.get(RAW)).body == b"old"
    for key in ("project-1", "project-7", "project-8", "project-9"):
        await busy.purge(keys=[key])
    assert (await idle.get(RAW)).body == b"new"


def test_what_began_before_the_oldest_remembered_purge_counts_as_purged() -> None:
    ledger = Ledger()
    for epoch in range(1, REMEMBERED + 2):
        ledger.record(epoch, Purge(keys=frozenset({"project-2"})))
    response = Named(RAW, 200, frozenset({"project-1"}))
    assert ledger.is_concerned(0, response)
    assert not ledger.is_concerned(1, response)
    assert ledger.is_concerned(REMEMBERED, Named(RAW, 200, frozenset({"project-2"})))
    assert not ledger.is_concerned(REMEMBERED + 1, Named(RAW, 200, frozenset({"project-2"})))


async def test_a_purge_survives_a_restart(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge()
    await _fill(edge, origin)
    await edge.purge(keys=["project-1"])
    again = await start_edge()
    assert (await again.get(RAW)).body == b"new"
    assert (await again.get(OTHER)).body == b"old"


@pytest.mark.parametrize(
    "authorization",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "purge-secret"}],
)
async def test_a_purge_needs_its_token(edge: Edge, authorization: dict[str, str]) -> None:
    async with edge.session.post(f"{edge.url}/-/purge", json={}, headers=authorization) as response:
        assert response.status == 401


async def test_without_a_token_there_is_no_purge(start_edge: StartEdge) -> None:
    edge = await start_edge(purge_token="")
    async with edge.session.post(f"{edge.url}/-/purge", json={}) as response:
        assert response.status == 404


TOO_MANY = [
    orjson.dumps({name: ["/a"] * number})
    for name, number in (("keys", 10_001), ("urls", 1_001), ("prefixes", 101))
]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"keys": "project-1"}', b'{"keys": [1]}', b'{"soft": 1}', b'{"prefix": []}',
     b'{"prefixes": ["group"]}', b'{"urls": ["/no/marker"]}', b'{"keys": ["\\u0000"]}', b"[" * 50_000, *TOO_MANY],
)  # fmt: skip
async def test_a_purge_that_is_none_is_400_and_says_why(edge: Edge, body: bytes) -> None:
    async with edge.session.post(
        f"{edge.url}/-/purge", data=body, headers={"Authorization": "Bearer purge-secret"}
    ) as response:
        assert response.status == 400
        assert (await response.json())["error"].endswith(".")


async def test_the_budget_of_memory_holds_and_keeps_what_was_used_last(
    start_edge: StartEdge, origin: Origin
) -> None:
    edge = await start_edge(memory_bytes=1_000_000)
    for number in range(30):
        origin.answers(bytes([number]) * 100_000, etag=f'"{number}"')
        await edge.get(f"/g/app/-/raw/main/{number}")
        await edge.settled()
    store = edge.app[STORE]
    assert 800_000 < store.memory.used <= 1_000_000
    kept = [n for n in range(30) if store.memory.find(f"{origin.url}/g/app/-/raw/main/{n}", {}) is not None]
    assert kept == list(range(21, 30))


@pytest.mark.parametrize("size", [100_000, 50_000])
async def test_the_budget_of_the_disk_holds(
    start_edge: StartEdge, origin: Origin, tmp_path: Path, size: int
) -> None:
    """Small bodies displace others, larger ones that were asked for once do not."""
    edge = await start_edge(disk_bytes=1_000_000, data_dir=tmp_path / "small")
    for number in range(30):
        origin.answers(bytes([number]) * size, etag=f'"{number}"')
        await edge.get(f"/g/app/-/raw/main/{number}")
        await edge.settled()
    files = [path for path in (tmp_path / "small").glob("*/objects/*/*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) <= 1_000_000


async def test_a_large_archive_asked_for_once_does_not_displace_others(
    start_edge: StartEdge, origin: Origin, clock: Clock
) -> None:
    edge = await start_edge(disk_bytes=1_000_000, memory_bytes=10_000)
    for number in range(20):
        origin.answers(bytes([number]) * 45_000, etag=f'"{number}"')
        await edge.get(f"/g/app/-/raw/main/{number}")
    await edge.settled()
    origin.answers(b"l" * 500_000, etag='"large"')
    for expected in ("fwd=uri-miss", "fwd=uri-miss", "hit"):
        assert expected in (await edge.get("/g/app/-/archive/main/app.zip")).cache_status
        await edge.settled()


async def test_every_purge_ends_what_was_not_found(edge: Edge, origin: Origin) -> None:
    origin.answers(status=404, etag=None, cache_control=None)
    for _ in range(2):
        assert (await edge.get(RAW)).status == 404
    await edge.settled()
    assert len(origin.requests) == 1
    await edge.purge(keys=["project-1"])
    origin.answers(b"pushed")
    assert (await edge.get(RAW)).body == b"pushed"


async def test_what_was_not_found_does_not_come_back_with_a_restart(
    start_edge: StartEdge, origin: Origin
) -> None:
    edge = await start_edge()
    origin.answers(b"none", status=404, cache_control="public, max-age=600")
    assert (await edge.get(RAW)).status == 404
    await edge.settled()
    await edge.purge(keys=["project-1"])
    origin.answers(b"pushed", etag='"v2"')
    assert (await (await start_edge()).get(RAW)).body == b"pushed"
