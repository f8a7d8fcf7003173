"""The object store: what it keeps, and how it fails."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from api_server.state.errors import Unavailable
from api_server.state.object_store import is_unfinished, open_objects
from api_server.state.objects import Objects
from common.concurrency import end
from common.operations import Degraded
from tests.support.ports import free_port
from tests.support.s3 import FAILURES, Bucket, at, serving_bucket

KEY = "projects/1/jobs/2/a"
CONTENT = bytes(range(256)) * 4096


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


async def content_of(objects: Objects, key: str, start: int, end: int) -> bytes:
    return b"".join([piece async for piece in objects.read(key, start, end)])


async def _open(objects: Objects) -> bytes:
    def read() -> bytes:
        with objects.open(KEY) as file:
            return file.read(10)

    return await asyncio.to_thread(read)


async def _list(objects: Objects) -> list[str]:
    return [key async for key in objects.keys("projects")]


OPERATIONS: dict[str, Callable[[Objects], Awaitable[object]]] = {
    "put": lambda objects: objects.put("projects/1/new", pieces(CONTENT)),
    "read": lambda objects: content_of(objects, KEY, 0, 10),
    "open": _open,
    "delete": lambda objects: objects.delete([KEY]),
    "delete below": lambda objects: objects.delete_below("projects/1"),
    "list": _list,
}


@pytest.fixture
async def bucket(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bucket]:
    async with serving_bucket(monkeypatch) as (bucket, _):
        yield bucket


def in_s3(tmp_path: Path, timeout: float = 20) -> Objects:
    return open_objects("s3://bucket/forgelet", tmp_path, timeout=timeout)


@pytest.mark.parametrize("where", ["file", "s3"])
async def test_what_is_put_is_there(bucket: Bucket, tmp_path: Path, where: str) -> None:
    objects = in_s3(tmp_path) if where == "s3" else open_objects("", tmp_path)
    await objects.check()
    for key in (KEY, "projects/10/lfs/b"):
        await objects.put(key, pieces(CONTENT, CONTENT[:10]))
    assert await content_of(objects, KEY, 0, len(CONTENT) + 10) == CONTENT + CONTENT[:10]
    assert await content_of(objects, KEY, 5, 7) == CONTENT[5:7]
    assert await _open(objects) == CONTENT[:10]
    assert sorted(await _list(objects)) == [KEY, "projects/10/lfs/b"]
    ((one,),) = [batch async for batch in objects.listed("projects/1")]
    assert (one.key, one.size) == (KEY, len(CONTENT) + 10)
    await objects.delete_below("projects/1")
    await objects.delete([KEY])
    assert await _list(objects) == ["projects/10/lfs/b"]
    with pytest.raises(FileNotFoundError):
        await content_of(objects, KEY, 0, 1)
    with pytest.raises(FileNotFoundError):
        await _open(objects)


@pytest.mark.parametrize("failure", FAILURES)
async def test_whatever_goes_wrong_with_s3_is_unavailable(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: str
) -> None:
    """Within the time that the setting says, and never "there is no such object"."""
    if failure == "gone":
        at(monkeypatch, f"http://127.0.0.1:{free_port()}")
    elif failure == "no such host":
        at(monkeypatch, "http://s3.invalid")
    else:
        bucket.failure = failure
    objects = in_s3(tmp_path, timeout=0.4)
    async with asyncio.timeout(15):
        outcomes = await asyncio.gather(
            *(operation(objects) for operation in OPERATIONS.values()), return_exceptions=True
        )
        assert {
            name: repr(outcome) for name, outcome in zip(OPERATIONS, outcomes, strict=True)
        } == dict.fromkeys(OPERATIONS, repr(Unavailable("the object store")))
        await objects.discard([KEY])
        with pytest.raises(Degraded, match="the object store"):
            await objects.check()


async def test_the_store_is_looked_at_once_however_many_ask(bucket: Bucket, tmp_path: Path) -> None:
    objects = in_s3(tmp_path)
    await asyncio.gather(*(objects.check() for _ in range(20)))
    assert bucket.requests == 1
    await objects.check()
    assert (bucket.requests, bucket.listings) == (2, 0), "every few seconds: listings are dear"


async def test_answers_that_break_off_are_asked_for_again_from_there(bucket: Bucket, tmp_path: Path) -> None:
    objects = in_s3(tmp_path)
    await objects.put(KEY, pieces(CONTENT))
    bucket.cut_after = 300_000
    assert await content_of(objects, KEY, 1, len(CONTENT)) == CONTENT[1:]
    bucket.cut_after = 0
    with pytest.raises(Unavailable):
        await content_of(in_s3(tmp_path, timeout=0.4), KEY, 1, len(CONTENT))


@pytest.mark.parametrize("where", ["file", "s3"])
async def test_an_object_that_is_too_short_never_looks_whole(
    bucket: Bucket, tmp_path: Path, where: str
) -> None:
    objects = in_s3(tmp_path) if where == "s3" else open_objects("", tmp_path)
    await objects.put(KEY, pieces(b"short"))
    read = objects.read(KEY, 0, 6)
    assert await anext(read) == b"short"
    with pytest.raises(Unavailable):
        await anext(read)


async def test_a_source_that_fails_is_no_fault_of_the_store(bucket: Bucket, tmp_path: Path) -> None:
    """Also where it fails as stores do."""

    async def fails(problem: Exception) -> AsyncIterator[bytes]:
        yield CONTENT
        raise problem

    for objects in (in_s3(tmp_path), open_objects("", tmp_path)):
        for problem in (
            ConnectionResetError("client"),
            FileNotFoundError("its own"),
            Unavailable("the database"),
        ):
            with pytest.raises(type(problem)) as raised:
                await objects.put(KEY, fails(problem))
            assert raised.value is problem
        assert await _list(objects) == []


async def test_what_is_not_written_yet_is_not_there_and_leaves_nothing_when_it_is_given_up(
    tmp_path: Path,
) -> None:
    begun, objects = asyncio.Event(), open_objects("", tmp_path)

    async def endless() -> AsyncIterator[bytes]:
        yield CONTENT
        begun.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(objects.put(KEY, endless()))
    await begun.wait()
    assert await _list(objects) == []
    assert not await objects.exists(KEY)
    (unfinished,) = (tmp_path / "objects").rglob("a#*")
    assert is_unfinished(unfinished.name)
    await end(upload)
    assert not unfinished.exists()
    assert await _list(objects) == []


async def test_a_folder_that_becomes_empty_is_no_hindrance_to_what_is_written_there(tmp_path: Path) -> None:
    objects = open_objects("", tmp_path)

    async def write_and_delete(name: str) -> None:
        for _ in range(10):
            await objects.put(f"projects/1/{name}", pieces(b"."))
            await objects.delete([f"projects/1/{name}"])

    await asyncio.gather(*(write_and_delete(name) for name in "abcd"))
    assert [*(tmp_path / "objects").iterdir()] == []


async def test_no_key_leads_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret_key").write_text("mine")
    objects = open_objects("", tmp_path)
    for key in ("../secret_key", "projects/../../secret_key", f"{tmp_path}/secret_key", "projects//a", "."):
        for operation in (
            objects.put(key, pieces(b".")),
            content_of(objects, key, 0, 1),
            objects.size(key),
            objects.delete([key]),
            objects.delete_below(key),
        ):
            with pytest.raises(Unavailable):
                await operation
    assert (tmp_path / "secret_key").read_text() == "mine"


async def test_a_listing_is_given_a_thousand_at_a_time(tmp_path: Path) -> None:
    objects = open_objects("", tmp_path)
    for number in range(1001):
        (tmp_path / f"objects/projects/{number % 7}").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"objects/projects/{number % 7}/{number}").touch()
    assert [len(batch) async for batch in objects.listed("projects")] == [1000, 1]


async def test_of_a_folder_with_many_objects_few_are_held_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project may have a million of them."""
    objects = open_objects("", tmp_path)
    (tmp_path / "objects/projects").mkdir()
    for number in range(1100):
        (tmp_path / f"objects/projects/{number}").touch()
    told: list[str] = []
    closed: list[Path] = []
    scandir = os.scandir

    def noted(entry: "os.DirEntry[str]") -> "os.DirEntry[str]":
        told.append(entry.name)
        return entry

    @contextmanager
    def noting(folder: Path) -> "Iterator[Iterator[os.DirEntry[str]]]":
        try:
            with scandir(folder) as entries:
                yield map(noted, entries)
        finally:
            closed.append(folder)

    def noting_ours(folder: Any) -> Any:
        """Servers of other tests look at folders of theirs meanwhile."""
        is_ours = isinstance(folder, Path) and folder.is_relative_to(tmp_path)
        return noting(folder) if is_ours else scandir(folder)

    monkeypatch.setattr(os, "scandir", noting_ours)
    async with aclosing(objects.listed("projects")) as batches:
        async for batch in batches:
            assert len(batch) == len(told) == 1000
            break
    assert closed == [tmp_path / "objects/projects"]


async def test_nothing_is_stored_that_looks_as_if_it_were_under_way(tmp_path: Path) -> None:
    """Listings would pass it over, and the sweep would remove it."""
    objects = open_objects("", tmp_path)
    with pytest.raises(Unavailable):
        await objects.put("projects/1/a#7", pieces(b"."))
    assert [*(tmp_path / "objects").iterdir()] == []


def _folder_is_gone(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def _folder_is_a_file(folder: Path) -> None:
    _folder_is_gone(folder)
    folder.write_text("")


@pytest.mark.parametrize("damage", [_folder_is_gone, _folder_is_a_file])
async def test_a_folder_that_goes_away_is_unavailable(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    objects = open_objects("", tmp_path)
    await objects.put(KEY, pieces(CONTENT))
    await objects.check()
    damage(tmp_path / "objects")
    for name in ("read", "open"):
        with pytest.raises(Unavailable):
            await OPERATIONS[name](objects)
    with pytest.raises(Degraded, match=r"^the object store is unavailable: .*its folder is gone$"):
        await objects.check()


@pytest.mark.parametrize("name", ["read", "open", "put"])
async def test_an_object_that_cannot_be_read_or_written_is_unavailable(tmp_path: Path, name: str) -> None:
    objects = open_objects("", tmp_path)
    (tmp_path / "objects/projects").mkdir()
    (tmp_path / "objects/projects/1").write_text("")
    with pytest.raises(Unavailable):
        await OPERATIONS[name](objects)


async def test_a_disk_that_is_full_says_so(tmp_path: Path) -> None:
    objects = open_objects("", tmp_path, disk_reserve=2**62)
    with pytest.raises(Unavailable):
        await OPERATIONS["put"](objects)
    with pytest.raises(Degraded, match=os.strerror(28)):
        await objects.check()
