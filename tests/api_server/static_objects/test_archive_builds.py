"""Building archives: for as long as somebody waits, no more at a time than may be, and no larger than may be."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pygit2
import pytest

from api_server.git.repositories import REPOSITORIES
from api_server.static_objects.archive_builds import ARCHIVES
from api_server.web.context import SERVICES
from tests.api_server.static_objects.places import Place, new_place
from tests.support.ci import eventually
from tests.support.folders import files_below
from tests.support.forge import Answer, Forge, SharedForges

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
    """A project whose archives stand still half-way: git waits for an object that nobody gives it."""

    place: Place
    repository: Path
    fifo: Path

    def fail(self) -> None:
        """A git that still waits gets an empty object."""
        with contextlib.suppress(OSError):  # none does
            os.close(os.open(self.fifo, os.O_WRONLY | os.O_NONBLOCK))

    def gits(self) -> int:
        """How many git processes there are for this repository."""
        return sum(str(self.repository).encode() in command for command in _commands())

    async def packing(self) -> None:
        async def begun() -> bool:
            return self.gits() == 1

        await eventually(begun)

    async def idle(self) -> None:
        """Once no git is left, and nothing of an archive."""

        async def over() -> bool:
            return not self.gits() and not built(self.place.forge, self.place.project["id"])

        await eventually(over)


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
    """Makes stuck projects, and lets them go in the end."""
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
    """Asks for the archive that stands still, as a client of the API, or a stranger on the page."""
    if client is None:
        return asyncio.create_task(stuck.place.get(f"/-/archive/stuck/x.{ending}"))
    url = f"/projects/{stuck.place.project['id']}/repository/archive.{ending}?sha=stuck"
    return asyncio.create_task(client.get(url))


def said(answer: Answer) -> tuple[int, Any, str | None]:
    return answer.status, answer.body, answer.headers.get("Retry-After")


async def left(task: "asyncio.Task[Answer]") -> None:
    """The client of a request closes its connection."""
    task.cancel()
    await asyncio.wait({task})


async def waiting(forge: Forge, count: int) -> None:
    async def wait() -> bool:
        return forge.server.app[SERVICES][ARCHIVES].waiting == count

    await eventually(wait)


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
        assert store.places.held == 1
        await left(first)
        await waiting(forge, 1)
        assert store.places.held == 1
    assert await second == await place.bytes(url)


async def test_no_more_are_built_at_a_time_than_may_be(new_forge, stick) -> None:
    async with new_forge(archive_builds=2, archive_builds_each=1, archive_wait=0) as forge:
        one, other, third = [await stick(forge) for _ in range(3)]
        alice, bob, carol = [(await forge.user()).api for _ in range(3)]
        first = get(one)  # a stranger
        await one.packing()
        assert said(await get(other)) == TOO_MANY_PAGE  # for strangers of her address
        assert said(await get(one, bob, "zip")) == TOO_MANY  # of this project
        second = get(other, alice)
        await other.packing()
        assert said(await get(third, carol)) == BUSY  # in all
        assert third.gits() == 0
        assert (await third.place.get("/-/archive/main/x.tar")).status == 503
        await left(first)

        async def is_built() -> bool:
            """The place is free a moment after the git has gone."""
            return (await third.place.get("/-/archive/main/x.tar")).status == 200

        await eventually(is_built)
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
