"""The object store: stored objects, failures, and that acknowledged data survives a power failure."""

import asyncio
import contextlib
import hashlib
import io
import os
import resource
import shutil
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from api_server.state import disk
from api_server.state.errors import Unavailable
from api_server.state.object_store import is_unfinished, open_objects
from api_server.state.objects import CHUNK, Objects
from common.concurrency import end
from common.operations import Degraded
from tests.support.forge import ROOT_TOKEN
from tests.support.ports import free_port
from tests.support.runner import RunningJob, running_job
from tests.support.s3 import FAILURES, Bucket, at, serving_bucket
from tests.support.server_process import ServerProcess, server_process

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
    ((one,),) = [batch async for batch in objects.batches("projects/1")]
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
    """The error comes within the time of the setting, and is never "there is no such object"."""
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
    """This applies also to a source that fails with an error of stores."""

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
    assert [len(batch) async for batch in objects.batches("projects")] == [1000, 1]


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
        """Record only our folders, because servers of other tests look at theirs meanwhile."""
        is_ours = isinstance(folder, Path) and folder.is_relative_to(tmp_path)
        return noting(folder) if is_ours else scandir(folder)

    monkeypatch.setattr(os, "scandir", noting_ours)
    async with aclosing(objects.batches("projects")) as batches:
        async for batch in batches:
            assert len(batch) == len(told) == 1000
            break
    assert closed == [tmp_path / "objects/projects"]


async def test_nothing_is_stored_that_looks_as_if_it_were_under_way(tmp_path: Path) -> None:
    """Listings would skip it, and the sweep would remove it."""
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


async def test_an_upload_that_is_given_up_leaves_no_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waiting = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield bytes(CHUNK)
        waiting.set()
        await asyncio.Event().wait()

    async with serving_bucket(monkeypatch) as (bucket, _):
        objects = open_objects("s3://bucket/forgelet", tmp_path)
        upload = asyncio.create_task(objects.put("projects/1/a", endless()))
        await waiting.wait()
        async with asyncio.timeout(20):
            while not any(bucket.parts.values()):
                await asyncio.sleep(0.01)
        await end(upload)
        assert upload.cancelled()
        assert (bucket.parts, bucket.objects) == ({}, {})


def chain(file: Path, root: Path) -> list[Path]:
    """Return everything that has to be on the disk so that `file` exists after a power failure."""
    return [file, *(folder for folder in file.parents if folder.is_relative_to(root))]


async def test_an_object_and_all_folders_above_it_are_synced_before_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    sync = disk.sync

    def noted(path: Path) -> None:
        existed = path.exists()
        sync(path)
        if path.is_relative_to(tmp_path):  # the server that tests share has files to sync meanwhile
            assert existed
            synced.append(path)

    monkeypatch.setattr(disk, "sync", noted)
    objects = open_objects(f"file://{tmp_path}/new/store", tmp_path)
    assert synced == [tmp_path, tmp_path / "new"]  # both have a new name in them now

    async def content() -> AsyncIterator[bytes]:
        yield b"content"

    for key in ("projects/1/jobs/2/a", "projects/1/jobs/2/b", "audit/heads/1"):
        synced.clear()
        await objects.put(key, content())
        file, *folders = chain(tmp_path / "new/store" / key, tmp_path / "new/store")
        assert synced[0].name.startswith(f"{file.name}#"), (
            "by its name only once all its bytes are on the disk"
        )
        assert synced[1:] == folders


@pytest.fixture(scope="module")
async def running(new_database: Any, tmp_path_factory: Any) -> AsyncIterator[tuple[ServerProcess, Path]]:
    """A server in a process of its own, and its data directory."""
    data_dir = tmp_path_factory.mktemp("durability") / "data"
    data_dir.mkdir()
    async with server_process(new_database(), data_dir, disk_reserve=0) as server:
        yield server, data_dir


@contextlib.asynccontextmanager
async def traced(server: ServerProcess, output: Path) -> AsyncIterator[None]:
    """A function that traces system calls that write to the disk, and those that send answers."""
    strace = await asyncio.create_subprocess_exec(
        "strace", "-f", "-y", "-s", "40", "-e", "trace=fsync,fdatasync,rename,renameat,renameat2,sendto,write,writev",
        "-o", output, "-p", str(server.pid),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert strace.stderr is not None
    attached = (await strace.stderr.readline()).decode()
    if "attached" not in attached:
        pytest.skip(f"strace may not look at processes: {attached.strip()}")
    reading = asyncio.ensure_future(strace.stderr.read())
    yield
    strace.terminate()
    await strace.wait()
    await reading


@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace")
async def test_system_calls_of_acknowledged_uploads(
    running: tuple[ServerProcess, Path], tmp_path: Path
) -> None:
    """Artifacts, LFS objects and logs are completely on the disk before the answer is sent."""
    (server, data_dir), trace = running, tmp_path / "trace"
    path, job = await _running_job(server, "traced")
    async with traced(server, trace):
        content = b"content of an object"
        oid = hashlib.sha256(content).hexdigest()
        credentials = b64encode(f"any:{ROOT_TOKEN}".encode()).decode()
        stored = await server.root.request(
            "PUT", f"{server.base}/{path}.git/info/lfs/objects/{oid}/{len(content)}", data=io.BytesIO(content),
            headers={"Authorization": f"Basic {credentials}"},
        )  # fmt: skip
        assert stored.status == 200
        assert (await job.upload(b"content")).status == 201
        await job.log(b"a line\n")
        await job.finish()
        objects = data_dir / "objects"
        async with asyncio.timeout(20):
            while not (logs := list(objects.glob("projects/*/jobs/*/log-*"))):
                await asyncio.sleep(0.02)
            while f"<{objects}>)" not in _after(trace, logs[0]):
                await asyncio.sleep(0.02)
    lines = trace.read_text(errors="replace").splitlines()
    (lfs,) = objects.glob("projects/*/lfs/*")
    artifacts = [file for file in objects.glob("projects/*/jobs/*/*") if not file.name.startswith("log-")]
    assert len(artifacts) == 2  # with its index
    for file, answer in [(lfs, "HTTP/1.1 200"), *((file, "HTTP/1.1 201") for file in artifacts)]:
        renamed = _line(lines, "rename", str(file), 0)
        answered = _line(lines, f'"{answer}', "", renamed)
        assert _line(lines, "fsync(", f"<{file}#", 0) < renamed
        for folder in chain(file, objects)[1:]:
            assert _line(lines, "fsync(", f"<{folder}>", renamed) < answered, folder


async def test_a_disk_that_is_full_is_503_until_there_is_room(running: tuple[ServerProcess, Path]) -> None:
    """Files may not grow beyond a megabyte, which has the same effect on the process as a full disk."""
    server, data_dir = running
    large = bytes(3 * 2**20)
    _, job = await _running_job(server, "full")
    limit = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (2**20, limit[1]))
    refused = await job.upload(large)
    assert (refused.status, refused.headers["Retry-After"], refused.body) == (
        503,
        "5",
        {"message": "503 Service Unavailable"},
    )
    assert [
        file for file in (data_dir / "objects/projects").rglob(f"jobs/{job.id}/*") if file.is_file()
    ] == []
    assert (await job.upload(b"small", artifact_type="junit", artifact_format="raw")).status == 201
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limit)
    assert (await job.upload(large)).status == 201


def _after(trace: Path, file: Path) -> str:
    return trace.read_text(errors="replace").partition(str(file))[2]


def _line(lines: list[str], call: str, about: str, after: int) -> int:
    """Return the number of the first line from `after` on that contains both."""
    found = (n for n in range(after, len(lines)) if call in lines[n] and about in lines[n])
    number = next(found, None)
    assert number is not None, (call, about)
    return number


async def _running_job(server: ServerProcess, name: str) -> tuple[str, RunningJob]:
    project = (await server.root.post("/projects", {"name": name})).body
    job = await running_job(server.root, project["id"], "one: {script: 'true'}")
    return project["path_with_namespace"], job
