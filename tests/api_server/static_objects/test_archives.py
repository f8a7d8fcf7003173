"""Archives: their names, formats and bytes, and how long they are stored here."""

import asyncio
import contextlib
import hashlib
import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pygit2
import pytest

from api_server.git.errors import NotFoundError
from api_server.git.repositories import REPOSITORIES
from api_server.static_objects.archive_builds import (
    ARCHIVES,
    ArchiveFiles,
    Bounds,
    GrowingFile,
    NoRoomError,
    TooLargeError,
)
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.api_server.static_objects.conftest import Place, new_place
from tests.support.folders import files_below
from tests.support.forge import Answer, Forge, SharedForges
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("rest", "file_name", "folder"),
    [
        ("main/whatever.zip", "{path}-main-{sha}.zip", "{path}-main-{sha}"),
        ("main/{path}-main.zip", "{path}-main.zip", "{path}-main"),
        ("main/{path}-main.zip?append_sha=true", "{path}-main-{sha}.zip", "{path}-main-{sha}"),
        ("main/whatever.zip?append_sha=false", "{path}-main.zip", "{path}-main"),
        ("{sha}/whatever.zip", "{path}-{sha}.zip", "{path}-{sha}"),
        ("main.zip", "{path}-main-{sha}.zip", "{path}-main-{sha}"),
        ("main.zip?append_sha=false", "{path}-main.zip", "{path}-main"),
        ("{sha}.zip", "{path}-{sha}.zip", "{path}-{sha}"),
        ("with/slash.zip", "{path}-with-slash-{sha}.zip", "{path}-with-slash-{sha}"),
        ("with/slash/x.zip", "{path}-with-slash-{sha}.zip", "{path}-with-slash-{sha}"),
        ("main/{path}-main.zip?path=docs", "{path}-main-docs.zip", "{path}-main-docs"),
    ],
)
async def test_names_of_archives(public: Place, rest: str, file_name: str, folder: str) -> None:
    words = {"path": public.project["path"], "sha": public.sha}
    if "with/slash" in rest:  # it may exist already
        branch = {"branch": "with/slash", "ref": "main"}
        await public.alice.api.post(f"/projects/{public.project['id']}/repository/branches", branch)
    url = f"/-/archive/{rest.format(**words)}"
    answer = await public.get(url)
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{file_name.format(**words)}"'
    assert answer.headers["Content-Type"] == "application/zip"
    names = zipfile.ZipFile(io.BytesIO(await public.bytes(url))).namelist()
    assert {name.split("/")[0] for name in names} == {folder.format(**words)}
    assert f"{folder.format(**words)}/docs/guide.md" in names
    assert ("path=docs" in rest) == (f"{folder.format(**words)}/README.md" not in names)


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tgz", "gz", "tar.bz2", "tbz2", "tbz", "tb2", "bz2"])
async def test_formats_of_archives_and_their_bytes(public: Place, ending: str) -> None:
    first = await public.bytes(f"/-/archive/main/x.{ending}")
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        member = archive.extractfile(f"{public.project['path']}-main-{public.sha}/README.md")
        assert member is not None
        assert member.read() == b"# Hello\n"
    again = await public.bytes(f"/-/archive/{public.sha}/y.{ending}?append_sha=true")
    assert len(again) > 100
    assert (
        hashlib.sha256(first).digest()
        == hashlib.sha256(await public.bytes(f"/-/archive/main/z.{ending}")).digest()
    )


@pytest.mark.parametrize("rest", ["missing.zip", "missing/main.zip", "main.rar", "main/x.rar"])
async def test_what_is_no_archive_is_404(public: Place, rest: str) -> None:
    assert (await public.get(f"/-/archive/{rest}")).status == 404


@pytest.mark.parametrize("path", ["archive", "archive.zip", "archive.tb2"])
async def test_the_api_gives_archives_to_those_who_may_read_the_repository(
    forge: Forge, public: Place, private: Place, path: str
) -> None:
    stranger, guest = await forge.user(), await forge.user()
    await forge.member("projects", private.project["id"], guest, Role.GUEST)
    for place, person, status in [(public, stranger, 200), (private, stranger, 404), (private, guest, 403)]:
        answer = await person.api.get(f"/projects/{place.project['id']}/repository/{path}")
        assert answer.status == status


@pytest.mark.parametrize("damage", ["no folder", "a folder in the way"])
async def test_a_disk_that_takes_no_archive_is_503(new_forge: Any, tmp_path: Path, damage: str) -> None:
    async with new_forge(data_dir=tmp_path / "data") as forge:
        place = await new_place(forge, tmp_path / "clone", "public")
        archives = tmp_path / "data" / "archives"
        shutil.rmtree(archives, ignore_errors=True)
        if damage == "no folder":
            archives.write_text("")
        else:
            archives.mkdir()
            (archives / str(place.project["id"])).write_text("")
        answer = await place.get("/-/archive/main/x.zip")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        shutil.rmtree(archives) if archives.is_dir() else archives.unlink()
        assert (await place.bytes("/-/archive/main/x.zip"))[:2] == b"PK"


MIB = 2**20


def write(file: Path, size: int, age: float) -> Path:
    """Write a file of this many bytes that was last requested this many seconds ago."""
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(bytes(size))
    when = file.stat().st_mtime - age
    os.utime(file, (when, when))
    return file


def archives(root: Path) -> dict[str, int]:
    """Return names and sizes of all archives, in whatever state."""
    return {
        "." if file.name.startswith(".") else file.name: file.stat().st_size
        for file in files_below(root)
        if file.parent != root
    }


@contextmanager
def growing(files: ArchiveFiles, name: str = "new") -> Iterator[GrowingFile]:
    file = GrowingFile(files, files.path(7, name))
    try:
        file.begin()
        yield file
    finally:
        file.close()


def test_what_was_not_asked_for_the_longest_makes_room_at_once(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path, Bounds(archive=2 * MIB, all=3 * MIB))
    for number, age in enumerate((300, 100, 200)):
        write(tmp_path / "1" / f"{number}", MIB, age)
    with growing(files) as file:
        file.write(b"x")
        assert archives(tmp_path) == {"1": MIB, "2": MIB, ".": MIB}
        file.write(bytes(MIB))
        assert archives(tmp_path) == {"1": MIB, ".": 2 * MIB}
        file.finish()
        assert archives(tmp_path) == {"1": MIB, "new": MIB + 1}
    opened = files.open(tmp_path / "7" / "new")
    assert opened is not None
    with opened:
        assert opened.read() == b"x" + bytes(MIB)


def test_at_no_moment_do_they_take_more_than_they_may(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path, Bounds(archive=4 * MIB, all=5 * MIB))
    write(tmp_path / "1" / "old", MIB, 1)
    totals, refused = [], []
    with growing(files, "one") as one, growing(files, "two") as two:
        for _ in range(48):
            for file in (one, two):
                try:
                    file.write(bytes(MIB // 16))
                except NoRoomError:
                    refused.append(file)
                totals.append(sum(path.stat().st_size for path in files_below(tmp_path)))
        assert max(totals) == 5 * MIB
        assert refused
        one.close()
        two.write(bytes(MIB // 16))  # space that the other one has freed
    assert archives(tmp_path) == {}


def test_what_is_sent_or_built_is_not_removed(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path, Bounds(archive=MIB, all=2 * MIB))
    sent = files.open(write(tmp_path / "1" / "sent", MIB, 300))
    assert sent is not None
    with growing(files) as file:
        file.write(bytes(MIB))
        files.shrink()
        with growing(files, "another") as another, pytest.raises(NoRoomError):
            another.write(b"x")
        assert archives(tmp_path) == {"sent": MIB, ".": MIB}
        os.utime(tmp_path / "1" / "sent", (0, 0))  # it was requested just now
        sent.close()
        with growing(files, "another") as another:
            another.write(b"x")
            assert "sent" not in archives(tmp_path)


def test_an_archive_has_a_limit_of_its_own(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path, Bounds(archive=1000, all=MIB))
    with growing(files) as file:
        file.write(bytes(1000))
        with pytest.raises(TooLargeError, match="The archive has more than 1000 bytes"):
            file.write(b"x")
        assert archives(tmp_path) == {".": 1000}
    assert archives(tmp_path) == {}


def test_the_disk_keeps_its_reserve(tmp_path: Path) -> None:
    old = write(tmp_path / "1" / "old", 1000, 1)
    with (
        growing(ArchiveFiles(tmp_path, Bounds(archive=1000, all=MIB, disk_reserve=2**60))) as file,
        pytest.raises(NoRoomError),
    ):
        file.write(b"x")
    assert not old.exists()  # removing it did not help


def test_many_small_ones_make_room_too(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path, Bounds(archive=1000, all=MIB, files=3))
    for number in range(5):
        write(tmp_path / "1" / f"{number}", 1, 100 - number)
    files.shrink()
    assert set(archives(tmp_path)) == {"2", "3", "4"}


def test_what_a_crash_has_left_unfinished_goes_and_what_is_being_built_stays(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path / "archives", Bounds(archive=1000, all=MIB))
    files.shrink()  # there is nothing yet
    with growing(files) as file:
        file.write(b"x")
        left = write(tmp_path / "archives" / "7" / ".left.zip.0123", 1, 0)
        files.shrink()
        assert not left.exists()
        file.finish()
    assert archives(tmp_path / "archives") == {"new": 1}


def test_what_vanishes_during_the_look_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "1" / "there", 10, 1)
    (tmp_path / "1" / "vanished").symlink_to("nothing")
    ArchiveFiles(tmp_path, Bounds(archive=10, all=10)).shrink()
    assert (tmp_path / "1" / "there").exists()


def test_a_removed_project_takes_its_archives_with_it(tmp_path: Path) -> None:
    files = ArchiveFiles(tmp_path, Bounds(archive=MIB, all=MIB))
    with growing(files) as file:
        file.write(b"x")
        files.remove_project(7)
        files.remove_project(7)
        with pytest.raises(NotFoundError):
            file.finish()
    assert archives(tmp_path) == {}


BUSY = (503, {"message": "503 Service Unavailable"}, "5")
TOO_MANY = (
    429,
    {"message": {"error": "This endpoint has been requested too many times. Try again later."}},
    "5",
)
TOO_MANY_PAGE = (429, "Too many of your requests are under way at once. Try again later.\n", "5")
TOO_LARGE = "The archive has more than 5000 bytes"


@attrs.frozen
class Stuck:
    """A project whose archives stall half-way: git waits for an object that it never gets."""

    place: Place
    repository: Path
    fifo: Path

    def fail(self) -> None:
        """Give a git that still waits an empty object."""
        with contextlib.suppress(OSError):  # no git waits
            os.close(os.open(self.fifo, os.O_WRONLY | os.O_NONBLOCK))

    def gits(self) -> int:
        """Return the number of git processes for this repository."""
        return sum(str(self.repository).encode() in command for command in _commands())

    async def packing(self) -> None:
        async def begun() -> bool:
            return self.gits() == 1

        await until(begun)

    async def idle(self) -> None:
        """Wait until no git is left, and no part of an archive."""

        async def over() -> bool:
            return not self.gits() and not built(self.place.forge, self.place.project["id"])

        await until(over)


def _commands() -> list[bytes]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            found.append((folder / "cmdline").read_bytes())
    return found


def built(forge: Forge, project_id: int) -> list[Path]:
    return files_below(forge.settings.data_dir / "archives" / str(project_id))


@pytest.fixture
async def stick(tmp_path: Path) -> AsyncIterator[Callable[[Forge], Any]]:
    """A function that creates stuck projects, which are released at the end."""
    made: list[Stuck] = []

    async def make(forge: Forge) -> Stuck:
        place = await new_place(forge, tmp_path / f"work-{len(made)}", "public")
        folder = forge.server.app[SERVICES][REPOSITORIES].path(place.project["id"])
        repository = pygit2.Repository(str(folder))
        commit = repository.get(place.sha)
        blob = repository.create_blob(os.urandom(100))
        tree = repository.TreeBuilder(commit.tree)
        tree.insert("zzz", blob, pygit2.enums.FileMode.BLOB)
        who = commit.author
        sha = repository.create_commit(None, who, who, "Stick", tree.write(), [commit.id])
        repository.references.create("refs/heads/stuck", sha, force=True)
        fifo = folder / "objects" / str(blob)[:2] / str(blob)[2:]
        fifo.unlink()
        os.mkfifo(fifo)
        made.append(Stuck(place, folder, fifo))
        return made[-1]

    yield make
    for stuck in made:
        stuck.fail()


def get(stuck: Stuck, client: Any = None, ending: str = "tar") -> "asyncio.Task[Answer]":
    """Request the stalled archive, as a client of the API, or anonymously on the page."""
    if client is None:
        return asyncio.create_task(stuck.place.get(f"/-/archive/stuck/x.{ending}"))
    url = f"/projects/{stuck.place.project['id']}/repository/archive.{ending}?sha=stuck"
    return asyncio.create_task(client.get(url))


def said(answer: Answer) -> tuple[int, Any, str | None]:
    return answer.status, answer.body, answer.headers.get("Retry-After")


async def left(task: "asyncio.Task[Answer]") -> None:
    """Close the client's connection of a request."""
    task.cancel()
    await asyncio.wait({task})


async def waiting(forge: Forge, count: int) -> None:
    async def wait() -> bool:
        return forge.server.app[SERVICES][ARCHIVES].waiting == count

    await until(wait)


async def test_a_build_ends_with_the_last_of_those_who_wait_for_it(forge: Forge, stick) -> None:
    stuck = await stick(forge)
    first, second = get(stuck), get(stuck)
    await waiting(forge, 2)
    await stuck.packing()
    await left(first)
    await waiting(forge, 1)
    assert stuck.gits() == 1
    await left(second)
    await stuck.idle()
    assert forge.server.app[SERVICES][ARCHIVES].waiting == 0


async def test_who_stays_gets_what_others_have_begun(forge: Forge, tmp_path: Path) -> None:
    place = await new_place(forge, tmp_path / "work", "public")
    store = forge.server.app[SERVICES][ARCHIVES]
    with store.files.locked():  # no file is begun meanwhile
        url = f"/-/archive/{place.sha}/x.zip"
        first, second = asyncio.create_task(place.get(url)), asyncio.create_task(place.bytes(url))
        await waiting(forge, 2)
        assert store.slots.in_use == 1
        await left(first)
        await waiting(forge, 1)
        assert store.slots.in_use == 1
    assert await second == await place.bytes(url)


async def test_no_more_are_built_at_a_time_than_may_be(new_forge, stick) -> None:
    async with new_forge(archive_builds=2, archive_builds_each=1, archive_wait=0) as forge:
        one, other, third = [await stick(forge) for _ in range(3)]
        alice, bob, carol = [(await forge.user()).api for _ in range(3)]
        first = get(one)  # anonymous
        await one.packing()
        assert said(await get(other)) == TOO_MANY_PAGE  # for anonymous callers from this address
        assert said(await get(one, bob, "zip")) == TOO_MANY  # of this project
        second = get(other, alice)
        await other.packing()
        assert said(await get(third, carol)) == BUSY  # altogether
        assert third.gits() == 0
        assert (await third.place.get("/-/archive/main/x.tar")).status == 503
        await left(first)

        async def is_built() -> bool:
            """Return whether an archive is built: the slot is free a moment after git has ended."""
            return (await third.place.get("/-/archive/main/x.tar")).status == 200

        await until(is_built)
        await left(second)


async def test_who_waits_for_her_turn_gets_it(new_forge, stick) -> None:
    async with new_forge(archive_builds=1, archive_wait=60) as forge:
        one = await stick(forge)
        place = one.place
        first = get(one)
        await one.packing()
        second = asyncio.create_task(place.get("/-/archive/main/x.tar"))
        await waiting(forge, 2)
        await left(first)
        assert (await second).status == 200


async def test_an_archive_that_would_be_too_large_is_refused_and_leaves_nothing(new_forge, tmp_path) -> None:
    async with new_forge(archive_limit=5000) as forge:
        place = await new_place(forge, tmp_path / "work", "public")
        url = f"/projects/{place.project['id']}/repository/archive.tar"
        for _ in range(2):
            page = await place.get("/-/archive/main/x.tar")
            assert said(page) == (413, f"413: Request Entity Too Large: {TOO_LARGE}\n", None)
            assert page.headers["Cache-Control"] == "no-store"
            refused = {"message": f"413 Request Entity Too Large - {TOO_LARGE}"}
            assert said(await place.alice.api.get(url)) == (413, refused, None)
        assert built(forge, place.project["id"]) == []
        assert (await place.get("/-/archive/main/x.tar.gz")).status == 200  # which is smaller


async def test_an_archive_that_takes_too_long_is_refused(new_forge, stick) -> None:
    async with new_forge(archive_timeout=1) as forge:
        stuck = await stick(forge)
        refused = {"message": "413 Request Entity Too Large - The archive takes more than 1 seconds"}
        assert said(await get(stuck, stuck.place.alice.api)) == (413, refused, None)
        await stuck.idle()


@pytest.mark.parametrize("settings", [{"archive_cache_bytes": 150_000}, {"disk_reserve": 2**60}])
async def test_without_room_for_it_an_archive_has_to_wait(
    shared_forge: SharedForges, tmp_path, settings
) -> None:
    forge = await shared_forge(**settings)
    files = forge.server.app[SERVICES][ARCHIVES].files
    project = (await forge.project(initialize_with_readme="true"))["id"]
    sent = files.path(project, "sent")
    sent.parent.mkdir(parents=True)
    sent.write_bytes(bytes(150_000))
    opened = files.open(sent)
    url = f"/projects/{project}/repository/archive.tar"
    assert said(await forge.root.get(url)) == BUSY
    assert built(forge, project) == [sent]
    opened.close()
    assert (await forge.root.get(url)).status == (200 if "archive_cache_bytes" in settings else 503)


async def test_what_a_crash_has_left_unfinished_is_gone_after_the_start(new_forge, tmp_path) -> None:
    left_behind = tmp_path / "archives" / "1" / ".abc.zip.def"
    left_behind.parent.mkdir(parents=True)
    left_behind.write_bytes(b"x")
    async with new_forge() as forge:
        assert built(forge, 1) == []
