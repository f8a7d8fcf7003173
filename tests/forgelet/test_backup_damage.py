"""Damaged, foreign or newer backups are reported as such; whatever happens meanwhile, a backup shows one moment."""

import asyncio
import gzip
import io
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from api_server.audit.chain import HEADS_FOLDER
from api_server.code import refs
from api_server.git import ref_moves
from api_server.git.received_push import Push, RefUpdate
from api_server.git.repositories import REPOSITORIES
from api_server.git.upkeep import Style, pack
from api_server.state import secrets
from api_server.state.backups import backing_up, not_during
from api_server.state.errors import Unavailable
from api_server.web.context import SERVICES
from common.config_errors import ConfigError
from forgelet.backup import backing_up as backing_up_module
from forgelet.backup.backing_up import back_up
from forgelet.backup.contents import Places, Refs
from forgelet.backup.form import HEADER, MANIFEST, Seal, verify
from forgelet.local.embedded_postgres import autocommitting
from tests.forgelet.backups import NOW, PASSPHRASE, backed_up, quiet, restored
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Client, Forge, running_forge

pytestmark = pytest.mark.usefixtures("cheap_passphrases", "quick_schema")


@pytest.fixture(scope="module")
def text(new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A backup of an instance with a repository, and with an object that rows name."""
    places = Places(new_database(), tmp_path_factory.mktemp("small"))
    secrets.ensure_key(places.database_url, places.data_dir)
    head = places.data_dir / f"objects/{HEADS_FOLDER}/{0:019}-{0:064}"
    head.parent.mkdir(parents=True)
    head.write_text("a head of the audit trail, longer than a block\n" * 100)
    stream = io.BytesIO()
    back_up(places, PASSPHRASE, stream, NOW, quiet)
    return stream.getvalue()


def changed(text: bytes, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """Return the backup with the contents of members that `change(name, content)` returns; members with None are left
    out."""
    written = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(text)) as old, tarfile.open(fileobj=written, mode="w") as new:
        for entry in old:
            found = old.extractfile(entry)
            content = change(entry.name, found.read() if found is not None else b"")
            if content is not None:
                entry.size = len(content)
                new.addfile(entry, io.BytesIO(content))
    return written.getvalue()


def of_header(**values: Any) -> Callable[[str, bytes], bytes | None]:
    def change(name: str, content: bytes) -> bytes | None:
        return orjson.dumps(orjson.loads(content) | values) if name == "header.json" else content

    return change


def without(wanted: str) -> Callable[[str, bytes], bytes | None]:
    return lambda name, content: None if wanted in name else content


def with_settings_of_another(name: str, content: bytes) -> bytes:
    """Change a table with its digests, as somebody without the passphrase could."""
    return content.replace(b'missing\\":[]', b'missing\\":[1]') if name == "manifest.json" else content


def with_member(name: str, **pax_headers: str) -> Callable[[bytes], bytes]:
    """Return a function that adds one more file after the header."""

    def change(text: bytes) -> bytes:
        written = io.BytesIO()
        with tarfile.open(fileobj=io.BytesIO(text)) as old, tarfile.open(fileobj=written, mode="w") as new:
            for entry in old:
                new.addfile(entry, old.extractfile(entry))
                if entry.name == HEADER:
                    another = tarfile.TarInfo(name)
                    another.size, another.pax_headers = 1, pax_headers
                    new.addfile(another, io.BytesIO(b"x"))
        return written.getvalue()

    return change


def with_sealed(**files: str) -> Callable[[bytes], bytes]:
    """Return a function that replaces sealed files, as somebody with the passphrase could."""

    def change(name: str, content: bytes) -> bytes | None:
        if name != HEADER:
            return content
        header = orjson.loads(content)
        header["sealed"] = Seal.again(PASSPHRASE, header["key"]).close({"files": files})
        return orjson.dumps(header)

    return lambda text: changed(text, change)


HUGE = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(10**13)}
MISTAKES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut off": (lambda text: text[: len(text) // 2], "The backup is cut off"),
    "without its end": (lambda text: changed(text, without("manifest")), "The backup is cut off"),
    "no backup": (lambda _: b"hello\n" * 1000, "This is no backup of forgelet"),
    "another tar": (lambda text: changed(text, without("header")), "This is no backup of forgelet"),
    "empty": (lambda _: b"", "This is no backup of forgelet"),
    "a table is gone": (lambda text: changed(text, without("remote_mirror_transitions")), "is damaged"),
    "changed by a stranger": (lambda text: changed(text, with_settings_of_another), "has not its passphrase"),
    "newer format": (lambda text: changed(text, of_header(format=2)), "The backup is of format 2"),
    "newer schema": (
        lambda text: changed(text, of_header(migrations=["9999_later"])),
        "its database has 9999_later",
    ),
    "of a commit before the first release": (
        lambda text: changed(text, of_header(migrations=["0001_accounts_and_projects"])),
        "The backup is of a commit before version 1.0.0",
    ),
    "out of its folder": (with_member("repositories/1/../../x"), "does not belong there"),
    "a file of ten terabytes of nothing": (with_member("repositories/1/x", **HUGE), "is no file"),
    "sizes that are none": (with_member("repositories/1/x", **{"GNU.sparse.map": "x"}), "is cut off"),
    "sealed files of somebody else": (
        with_sealed(**{"secret_key": "", "secrets/../../.ssh/authorized_keys": "x"}),
        "its sealed files are not those of an instance",
    ),
    "no secret key": (with_sealed(), "its sealed files are not those of an instance"),
    "absurd cost": (
        lambda text: changed(text, of_header(key={"name": "scrypt", "n": 2**40, "r": 8, "p": 1, "salt": ""})),
        "it does not say how its key is sealed",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(text: bytes, name: str) -> None:
    damage, sentence = MISTAKES[name]
    with pytest.raises(ConfigError, match=sentence):
        verify(io.BytesIO(damage(text)), PASSPHRASE)


def test_every_changed_byte_of_a_part_is_found(text: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(text)) as tar:
        places = [(entry.name, entry.offset_data + entry.size // 2) for entry in tar if entry.size]
    assert len(places) > 5
    for name, place in places:
        broken = bytearray(text)
        broken[place] ^= 1
        with pytest.raises(ConfigError):
            verify(io.BytesIO(broken), PASSPHRASE if name in (HEADER, MANIFEST) else None)


def test_another_passphrase_does_not_open_it(text: bytes) -> None:
    with pytest.raises(ConfigError, match="The passphrase is not the one"):
        verify(io.BytesIO(text), "another one")
    assert verify(io.BytesIO(text), PASSPHRASE).passphrase_fits
    assert verify(io.BytesIO(text), None).passphrase_fits is None


def test_what_fails_at_the_very_end_leaves_nothing(text: bytes, empty: Places) -> None:
    with pytest.raises(ConfigError, match="has not its passphrase"):
        restored(empty, changed(text, with_settings_of_another))
    assert not any(empty.data_dir.iterdir())
    with autocommitting(empty.database_url) as cursor:
        cursor.execute("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace")
        assert cursor.fetchone() == (0,)


def test_rows_that_do_not_fit_are_told_as_damage(text: bytes, empty: Places) -> None:
    def with_other_rows(name: str, content: bytes) -> bytes:
        return gzip.compress(b"x\ty\n") if name.endswith(".gz") else content

    with pytest.raises(ConfigError, match=r"is damaged .rows of \w+ do not fit"):
        restored(empty, changed(text, with_other_rows))
    assert not any(empty.data_dir.iterdir())


@pytest.mark.parametrize("part", ["database/", "objects/"])
def test_what_breaks_off_within_a_part_is_said_in_one_sentence(text: bytes, empty: Places, part: str) -> None:
    with tarfile.open(fileobj=io.BytesIO(text)) as tar:
        found = max((one for one in tar if one.name.startswith(part)), key=lambda one: one.size)
    with pytest.raises(ConfigError, match="The backup is cut off"):
        restored(empty, text[: found.offset_data + found.size // 2])
    assert not any(empty.data_dir.iterdir())


def test_what_is_not_empty_is_refused(text: bytes, empty: Places, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "a file").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        restored(Places(empty.database_url, full), text)
    with autocommitting(empty.database_url) as cursor:
        cursor.execute("CREATE TABLE strangers (id integer)")
    with pytest.raises(ConfigError, match="The database is not empty"):
        restored(empty, text)
    with autocommitting(empty.database_url) as cursor:
        cursor.execute("DROP TABLE strangers")
    restored(empty, text)  # into an empty place
    with pytest.raises(ConfigError, match="is not empty"):
        restored(empty, text)


@pytest.fixture(scope="module")
async def here(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    async with running_forge(new_database(), tmp_path_factory.mktemp("busy")) as forge:
        yield forge


def just_after_the_moment(work: Callable[[], Awaitable[None]]) -> Callable[[str, int, int], None]:
    """Return a function that runs `work` once while the backup waits, when it copies its first table."""
    loop, begun = asyncio.get_running_loop(), []

    def progress(what: str, _done: int, _of: int) -> None:
        if what == "tables" and not begun:
            begun.append(what)
            asyncio.run_coroutine_threadsafe(work(), loop).result(60)

    return progress


async def commit(project: CiProject, client: Client, branch: str, path: str, **values: Any) -> str:
    actions = [{"action": "create", "file_path": path, "content": "job: {script: make}\n"}]
    made = await client.post(
        f"{project.url}/repository/commits",
        {"branch": branch, "commit_message": f"Add {path}", "actions": actions} | values,
    )
    assert made.status == 201, made
    return str(made.body["id"])


async def test_what_happens_meanwhile_is_not_in_it_and_takes_nothing_from_it(
    here: Forge, empty: Places
) -> None:
    doomed, changed = await ci_project(here), await ci_project(here)
    first = await commit(changed, here.root, "feature", "one.txt", start_branch="main")

    async def work() -> None:
        """Remove a project with its repository, and a branch; move another one."""
        assert (await here.root.delete(f"/projects/{doomed.id}")).status == 202
        with pytest.raises(Unavailable):  # the queue does this next
            not_during(here.server.app[SERVICES][REPOSITORIES].root)
        assert (await changed.api.delete(f"{changed.url}/repository/branches/feature")).status == 204
        await commit(changed, here.root, "main", "two.txt")
        assert not await pack(here.server.app[SERVICES][REPOSITORIES].path(changed.id), Style(), 0.0)

    text, made = await backed_up(here, just_after_the_moment(work))
    assert made.missing == []
    await asyncio.to_thread(restored, empty, text)
    async with running_forge(empty.database_url, empty.data_dir) as again:
        url = f"/projects/{changed.id}/repository"
        assert (await again.root.get(f"/projects/{doomed.id}/repository/tree")).status == 200
        assert (await again.root.get(f"{url}/branches/feature")).body["commit"]["id"] == first
        assert (await again.root.get(f"{url}/files/one%2Etxt?ref=feature")).status == 200
        assert (await again.root.get(f"{url}/files/two%2Etxt?ref=main")).status == 404


async def test_pushes_wait_only_while_what_has_moved_is_read_again(
    here: Forge, empty: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, twice, quiet = [await ci_project(here) for _ in range(3)]
    kept = await commit(quiet, here.root, "feature", "kept.txt", start_branch="main")
    loop, readings, read_meanwhile = asyncio.get_running_loop(), [], []
    hold, read = backing_up_module._hold_pushes, Refs.read

    async def work() -> None:
        if len(readings) == 1:
            await commit(once, here.root, "main", "one.txt")
            assert (await quiet.api.post(f"{quiet.url}/statuses/{kept}?state=success")).status == 201
        await commit(twice, here.root, "main", f"{len(readings)}.txt")

    def progress(what: str, done: int, of: int) -> None:
        if what == "refs" and done == of - 1:  # of all others, refs have been read
            readings.append(of)
            asyncio.run_coroutine_threadsafe(work(), loop).result(60)

    def noted(refs: Refs, repositories: Any, project_id: int, **options: Any) -> None:
        if is_held:
            read_meanwhile.append(project_id)
        read(refs, repositories, project_id, **options)

    def held(barrier: Any) -> None:
        hold(barrier)
        is_held.append(True)

    is_held: list[bool] = []
    monkeypatch.setattr(backing_up_module, "_hold_pushes", held)
    monkeypatch.setattr(Refs, "read", noted)
    text, _ = await backed_up(here, progress)
    assert read_meanwhile == [twice.id]
    await asyncio.to_thread(restored, empty, text)
    async with running_forge(empty.database_url, empty.data_dir) as again:
        for project, name in ((once, "one.txt"), (twice, "1.txt"), (twice, "2.txt")):
            url = f"{project.url}/repository/files/{name.replace('.', '%2E')}?ref=main"
            assert (await again.root.get(url)).status == 200
        repository = again.server.app[SERVICES][REPOSITORIES].open(quiet.id)
        assert f"refs/keep-around/{kept}" in repository.references


async def test_a_push_that_was_not_settled_is_settled_after_the_restore(here: Forge, empty: Places) -> None:
    project = await ci_project(here)
    old = (await project.api.get(f"{project.url}/repository/branches/main")).body["commit"]["id"]
    new = await commit(project, here.root, "other", ".gitlab-ci.yml", start_branch="main")
    push = Push((RefUpdate(old, new, "refs/heads/main"),))
    app = here.server.app
    await refs.propose(app[SERVICES], project.id, (await here.root.get("/user")).body["id"], push)
    await ref_moves.apply_push(app[SERVICES][REPOSITORIES].path(project.id), push)  # and the server is killed
    text, _ = await backed_up(here)
    await refs.settle_push(app[SERVICES], project.id, push)
    await asyncio.to_thread(restored, empty, text)
    async with running_forge(empty.database_url, empty.data_dir) as again:
        async with asyncio.timeout(30):  # the queue has it
            while not (await again.root.get(f"/projects/{project.id}/pipelines?ref=main&sha={new}")).body:
                await asyncio.sleep(0.05)
        with autocommitting(empty.database_url) as cursor:
            cursor.execute("SELECT count(*) FROM pushes")
            assert cursor.fetchone() == (0,)


async def test_a_missing_repository_and_object_are_named(here: Forge) -> None:
    project = await ci_project(here)
    repository = here.server.app[SERVICES][REPOSITORIES].path(project.id)
    aside = repository.with_name("aside")
    repository.rename(aside)
    try:
        _, made = await backed_up(here)
    finally:
        aside.rename(repository)
    assert made.missing == [f"repository of project {project.id}"]


def test_one_backup_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api_server.state.backups._TIMEOUT_SECONDS", 0.0)
    not_during(tmp_path)
    with backing_up(tmp_path), pytest.raises(ConfigError, match="Another backup"), backing_up(tmp_path):
        pass
    not_during(tmp_path)
