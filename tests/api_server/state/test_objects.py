"""The object store: what it keeps, and how it fails."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from api_server.state.errors import Unavailable
from api_server.state.objects import Objects, open_objects
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
