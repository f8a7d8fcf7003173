"""Purges: after their answer, nothing from before is served."""

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import orjson
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_edge.client.handlers import STORE
from storage_edge.storage import purges
from storage_edge.storage.purges import (
    EVERYTHING,
    REMEMBERED,
    SLOT_BYTES,
    SLOTS,
    Ledger,
    NoLogError,
    Purge,
    PurgeLog,
)
from tests.storage_edge.conftest import PURGE_TOKEN, RAW, Clock, Edge, Origin, StartEdge
from tests.support.waiting import until

OTHER = "/group/other/-/raw/main/README.md"


@attrs.frozen
class Named:
    """The parts of a response on which a purge depends."""

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
    """Small bodies displace others; larger ones that were requested once do not."""
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


NAMES = st.lists(st.text(st.characters(exclude_categories=("C",)), min_size=1, max_size=700), max_size=40)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "purges"


@pytest.fixture
def log(path: Path) -> Iterator[PurgeLog]:
    log = PurgeLog(path, Clock())
    log.epoch(0)
    yield log
    log.close()


def _added(log: PurgeLog, purge: Purge) -> list[Purge]:
    before = log.epoch(0)
    assert log.add(purge, before)
    return [found for _, found in log.since(before)]


@given(keys=NAMES, urls=NAMES, prefixes=NAMES, soft=st.booleans())
@settings(suppress_health_check=list(HealthCheck))
def test_what_is_read_concerns_all_that_was_written(
    log: PurgeLog, keys: list[str], urls: list[str], prefixes: list[str], soft: bool
) -> None:
    urls, prefixes = [f"/{url}" for url in urls], [f"/{prefix}" for prefix in prefixes]
    written = Purge(frozenset(keys), frozenset(urls), tuple(prefixes), soft)
    found = _added(log, written)
    responses = [Named("/elsewhere", 200, frozenset({key})) for key in keys]
    responses += [Named(target, 200, frozenset()) for target in (*urls, *(f"{p}/more" for p in prefixes))]
    assert all(any(purge.concerns(response) for purge in found) for response in responses)
    if all(len(name.encode()) < 400 for name in (*keys, *urls, *prefixes)):
        assert frozenset().union(*(purge.keys for purge in found)) == written.keys
        assert frozenset().union(*(purge.urls for purge in found)) == written.urls
        assert {prefix for purge in found for prefix in purge.prefixes} == set(prefixes)
        assert {purge.soft for purge in found} == {soft}


@pytest.mark.parametrize("name", ['"' * 400, "\\" * 400, "\U0001f40c" * 100])
def test_the_longest_names_fit(log: PurgeLog, name: str) -> None:
    purge = Purge(keys=frozenset({name}), urls=frozenset({f"/{name[:-1]}"}), prefixes=(f"/{name[:-1]}",))
    before = log.epoch(0)
    log.add(Purge(keys=frozenset({"last"})), before)
    found = _added(log, purge)
    assert frozenset().union(*(entry.keys for entry in found)) == purge.keys
    assert frozenset().union(*(entry.urls for entry in found)) == purge.urls
    assert [prefix for entry in found for prefix in entry.prefixes] == list(purge.prefixes)
    assert len(log.since(before)) == 1 + len(found)


def test_a_purge_of_more_than_the_log_holds_is_one_of_everything(log: PurgeLog) -> None:
    keys = frozenset(f"project-{number:0100}" for number in range(8 * SLOTS))
    assert _added(log, Purge(keys=keys)) == [EVERYTHING]


def test_what_cannot_be_read_is_a_purge_of_everything(log: PurgeLog, path: Path) -> None:
    before = log.epoch(0)
    for key in ("one", "two", "three"):
        log.add(Purge(keys=frozenset({key})), before)
    assert [number for number, _ in log.since(before)] == [before + 1, before + 2, before + 3]
    with path.open("r+b") as file:
        content = file.read()
        file.seek(content.index(b'"two"') + 1)
        file.write(b"x")
    assert log.since(before) == [(before + 3, EVERYTHING)]
    assert log.since(before + 2) == [(before + 3, Purge(keys=frozenset({"three"})))]


async def test_a_log_that_is_made_anew_goes_on_with_higher_numbers(log: PurgeLog, path: Path) -> None:
    before = log.epoch(0)
    log.add(Purge(keys=frozenset({"one"})), before)
    known = log.epoch(before)
    path.unlink()
    await until(lambda: log.epoch(known) > known)
    assert log.since(known) == [(log.epoch(known), EVERYTHING)]


def test_its_room_is_taken_when_it_is_made(log: PurgeLog, path: Path) -> None:
    assert path.stat().st_blocks * 512 >= path.stat().st_size > SLOTS * SLOT_BYTES


def test_without_a_log_everything_is_purged_all_the_time(path: Path) -> None:
    path.parent.joinpath("file").write_text("")
    log = PurgeLog(path.parent / "file" / "purges", Clock())
    assert [log.epoch(0), log.epoch(1), log.epoch(2)] == [1, 2, 3]
    assert log.since(3) == [(4, EVERYTHING)]
    with pytest.raises(NoLogError):
        log.add(Purge(), 3)


async def test_a_process_that_keeps_the_log_locked_stops_no_purge(
    start_edge: StartEdge, origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_edge.storage.store.TIMEOUT", 0.05)
    edges = [await start_edge(), await start_edge()]
    origin.answers(b"old", cache_control="max-age=600", Surrogate_Key="project-1")
    for edge in edges:
        await edge.get(RAW)
        await edge.settled()
    (path,) = tmp_path.glob("edge/*/purges")
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        await edges[0].purge(keys=["project-1"])
    origin.answers(b"new", etag='"2"', cache_control="max-age=600")
    for edge in edges:
        assert (await edge.get(RAW)).body == b"new"


async def test_a_purge_is_on_disk_before_it_is_answered(
    edge: Edge, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    purges = edge.app[STORE].disk.purges
    before, synced = purges.epoch(0), []

    def fdatasync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, purges.since(before)))
        os.fsync(descriptor)

    monkeypatch.setattr("storage_edge.storage.purges.os", _Os(fdatasync))
    await edge.purge(keys=["project-1"])
    ((inode, written),) = synced
    assert written == [(before + 1, Purge(keys=frozenset({"project-1"})))]
    path = edge.app[STORE].disk.files.directory.with_name("purges")
    assert path.stat().st_ino == inode


class _Os:
    """The module, with another fdatasync."""

    def __init__(self, fdatasync: Callable[[int], None]) -> None:
        self.fdatasync = fdatasync

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


async def test_a_purge_that_may_not_outlive_a_crash_is_503_and_holds(
    edge: Edge, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise OSError(5, os.strerror(5))

    origin.answers(b"old", cache_control="max-age=600", Surrogate_Key="project-1")
    await edge.get(RAW)
    await edge.settled()
    monkeypatch.setattr(edge.app[STORE].disk.purges, "sync", fails)
    headers = {"Authorization": f"Bearer {PURGE_TOKEN}"}
    async with edge.session.post(
        f"{edge.url}/-/purge", json={"keys": ["project-1"]}, headers=headers
    ) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        assert await answer.json() == {"message": "The purge may not outlive a crash of the machine."}
    origin.answers(b"new", etag='"2"', cache_control="max-age=600")
    assert (await edge.get(RAW)).body == b"new"


@pytest.mark.parametrize("size", [100, 800_000])
@pytest.mark.parametrize("seconds", [5, 600])
async def test_what_is_being_stored_when_a_purge_comes_does_not_survive_it(
    start_edge: StartEdge, origin: Origin, size: int, seconds: int
) -> None:
    """This holds in memory, where short-lived bodies stay, and on disk, where another process looks."""
    edge = await start_edge()
    begun, gate = asyncio.Event(), asyncio.Event()
    body = b"o" * size

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={
                "Cache-Control": f"max-age={seconds}", "Date": origin.date(), "Surrogate-Key": "project-1"
            }
        )  # fmt: skip
        response.content_length = size
        await response.prepare(request)
        await response.write(body[: size // 2])
        begun.set()
        await gate.wait()
        await response.write(body[size // 2 :])
        return response

    origin.handler = handler
    first = asyncio.create_task(edge.get(RAW))
    await begun.wait()
    await edge.purge(keys=["project-1"])
    origin.answers(b"new")
    assert (await edge.get(RAW)).body == b"new"
    async with asyncio.timeout(20):
        while edge.app[STORE].disk.size != len(b"new"):
            await asyncio.sleep(0.01)
    gate.set()
    assert (await first).body == body
    await edge.settled()
    for one in (edge, await start_edge()):
        assert (await one.get(RAW)).body == b"new"


async def test_what_is_purged_does_not_stand_in_for_a_failure_that_was_under_way(
    edge: Edge, origin: Origin, clock: Clock
) -> None:
    origin.answers(b"old", cache_control="max-age=10, stale-if-error=600", Surrogate_Key="project-1")
    await edge.get(RAW)
    await edge.settled()
    clock.advance(20)
    origin.answers(status=503, etag=None, cache_control=None)
    begun, gate = origin.held_back()
    first = asyncio.create_task(edge.get(RAW))
    await begun.wait()
    await edge.purge(keys=["project-1"])
    gate.set()
    assert (await first).status == 503


async def test_a_soft_purge_counts_though_a_validation_was_under_way(
    edge: Edge, origin: Origin, clock: Clock
) -> None:
    origin.answers(b"old", cache_control="max-age=600", Surrogate_Key="project-1")
    await edge.get(RAW)
    await edge.settled()
    clock.advance(700)
    begun, gate = origin.held_back()
    first = asyncio.create_task(edge.get(RAW))
    await begun.wait()
    await edge.purge(keys=["project-1"], soft=True)
    gate.set()
    assert (await first).body == b"old"
    await edge.settled()
    origin.answers(b"new", etag='"v2"')
    assert (await edge.get(RAW)).body == b"new"


async def test_what_was_asked_of_the_origin_before_a_purge_is_not_joined_after_it(
    edge: Edge, origin: Origin
) -> None:
    origin.answers(b"old", cache_control="max-age=600", etag=None)
    begun, gate = origin.held_back()
    first = asyncio.create_task(edge.get(RAW))
    await begun.wait()
    await edge.purge(prefixes=["/group/app/"])
    origin.answers(b"new", cache_control="max-age=600")
    assert (await edge.get(RAW)).body == b"new"
    gate.set()
    assert (await first).body == b"old"
    await edge.settled()
    assert (await edge.get(RAW)).body == b"new"


async def test_what_was_asked_for_more_purges_ago_than_are_kept_is_not_stored(
    start_edge: StartEdge, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purges, "SLOTS", 2)
    edge = await start_edge()
    origin.answers(b"old", cache_control="max-age=600", etag=None)
    begun, gate = origin.held_back()
    first = asyncio.create_task(edge.get(RAW))
    await begun.wait()
    for path in ("/group/app/", "/group/b/", "/group/c/", "/group/d/"):
        await edge.purge(prefixes=[path])
    gate.set()
    assert (await first).body == b"old"
    await edge.settled()
    assert edge.app[STORE].disk.size == 0
