"""The purge log: nothing that is written there is lost, and what cannot be read is a purge of everything."""

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_edge.client.handlers import STORE
from storage_edge.storage.purges import EVERYTHING, SLOT_BYTES, SLOTS, NoLogError, Purge, PurgeLog
from tests.storage_edge.conftest import PURGE_TOKEN, Clock, Edge, Origin, StartEdge
from tests.storage_edge.test_purge import RAW, Named
from tests.support.waiting import until

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
    monkeypatch.setattr("storage_edge.storage.store.PATIENCE", 0.05)
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
