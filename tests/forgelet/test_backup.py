"""Backups and restores: the operators' commands, and that a restored instance gives the same answers."""

import asyncio
import contextlib
import gzip
import io
import os
import shutil
import signal
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import Result

from api_server.audit import chain
from api_server.audit.chain import verify as verify_chain
from api_server.state import migrate, secrets, sweep
from api_server.state.backups import UNFINISHED_RESTORE
from api_server.state.object_store import open_objects
from api_server.web.context import SERVICES
from forgelet.backup.backing_up import BackedUp
from forgelet.backup.contents import _SMALL_BYTES, Places
from forgelet.commands import backup
from forgelet.local.embedded_postgres import autocommitting
from tests.forgelet.backups import PASSPHRASE, backed_up, restored
from tests.forgelet.commands.running import answer, mistake, of_server
from tests.support.forge import ROOT_TOKEN, Forge, running_forge
from tests.support.furnished import Furnished, furnish
from tests.support.route_table import ROUTES, name_of
from tests.support.s3 import Bucket, serving_bucket

pytestmark = pytest.mark.usefixtures("cheap_passphrases", "quick_schema")

ENDING_TIDILY = backup.ending_tidily
_HERE, _THERE = "s3://bucket/here", "s3://bucket/there"
#: By key: an object that is fetched with others, and one that is transferred piece by piece.
_STORED = {"projects/1/lfs/small": b"small", "projects/1/lfs/large": os.urandom(_SMALL_BYTES) * 9}


@attrs.frozen
class Scene:
    """An instance, its bucket, and commands with the passphrase."""

    forge: Forge
    bucket: Bucket
    passphrase_file: Path

    async def run(self, *arguments: str, store: str = _HERE, **environment: str) -> Result:
        return await asyncio.to_thread(
            of_server,
            self.forge.settings.database_url,
            self.forge.settings.data_dir,
            *arguments,
            "--passphrase-file",
            str(self.passphrase_file),
            FORGELET_API_OBJECT_STORE_URL=store,
            **environment,
        )

    async def restore(self, file: Path, empty: Places) -> Result:
        return await self.run(
            "restore",
            str(file),
            "--data-dir",
            str(empty.data_dir),
            store=_THERE,
            FORGELET_DATABASE_URL=empty.database_url,
        )

    def stored(self, store: str) -> dict[str, bytes]:
        place = f"{store.rpartition('/')[2]}/"
        return {
            key.removeprefix(place): text
            for key, text in self.bucket.objects.items()
            if key.startswith(place)
        }


@pytest.fixture(scope="module")
async def scene(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    folder = tmp_path_factory.mktemp("commands")
    (folder / "passphrase").write_text(f"{PASSPHRASE}\n")
    with pytest.MonkeyPatch.context() as patch:
        # signals are for the main thread, which serves the bucket
        patch.setattr(backup, "ending_tidily", contextlib.nullcontext)
        async with (
            serving_bucket(patch) as (bucket, _),
            running_forge(
                new_database(), folder / "data", object_store_url=_HERE, audit_head_minutes=0
            ) as forge,
        ):
            project = (await forge.root.post("/projects", {"name": "kept"})).body
            for number, (key, content) in enumerate(_STORED.items()):
                await forge.server.app[SERVICES].objects.put(key, _once(content))
                with autocommitting(forge.settings.database_url) as cursor:
                    cursor.execute(
                        "INSERT INTO lfs_objects (project_id, size, oid, object_key, created_at)"
                        " VALUES (%s, %s, %s, %s, now())",
                        (project["id"], len(content), f"{number:064}", key),
                    )
            await chain.keep_present_head(forge.database, forge.server.app[SERVICES].objects)
            yield Scene(forge, bucket, folder / "passphrase")


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


@pytest.fixture(scope="module")
async def file(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("backups") / "today.forgelet"
    made.write_text("of yesterday, and readable by all")
    told = answer(await scene.run("backup", str(made), "--verify", "--json"))
    assert (told["projects"], told["missing"], told["verified"]) == (1, [], True)
    assert made.stat().st_mode & 0o777 == 0o600
    assert [*made.parent.iterdir()] == [made]
    return made


async def test_objects_go_from_one_bucket_to_another(scene: Scene, file: Path, empty: Places) -> None:
    done = await scene.restore(file, empty)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Restored 1 projects, 3 stored objects")
    there = scene.stored(_THERE)
    assert there == scene.stored(_HERE)  # and a stored head of the audit trail
    assert there.items() > _STORED.items()
    assert not (empty.data_dir / "objects").exists()
    refused = mistake(await scene.restore(file, attrs.evolve(empty, data_dir=empty.data_dir / "elsewhere")))
    assert refused.startswith("The database is not empty")
    with autocommitting(empty.database_url) as cursor:
        cursor.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    refused = mistake(await scene.restore(file, attrs.evolve(empty, data_dir=empty.data_dir / "elsewhere")))
    assert refused.startswith(f"The object store {_THERE} is not empty")
    await open_objects(_THERE, empty.data_dir).delete(there)
    assert scene.stored(_THERE) == {}


async def test_a_restore_that_fails_takes_back_what_it_has_put_into_a_bucket(
    scene: Scene, file: Path, empty: Places, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.forgelet"
    cut.write_bytes(file.read_bytes()[:-20_000])  # its manifest and the end of the last object
    assert mistake(await scene.restore(cut, empty)).startswith("The backup is cut off")
    assert scene.stored(_THERE) == {}
    assert not empty.data_dir.exists()


async def test_a_backup_that_cannot_be_finished_leaves_no_file(scene: Scene, tmp_path: Path) -> None:
    target = tmp_path / "today.forgelet"
    scene.bucket.failure = "AccessDenied"
    try:
        done = await scene.run("backup", str(target))
    finally:
        scene.bucket.failure = None
    assert (done.exit_code, [*tmp_path.iterdir()]) == (1, [])
    assert done.stderr.startswith("Error: the object store")
    full = await scene.run("backup", "/dev/full")
    assert (full.exit_code, full.stderr) == (1, "Error: No space left on device\n")
    nowhere = mistake(await scene.run("backup", str(tmp_path / "nowhere" / "file")))
    assert nowhere == f"No backup can be written to {tmp_path}/nowhere/file: No such file or directory"
    unread = mistake(await scene.run("restore", str(target), "--data-dir", str(tmp_path / "new")))
    assert unread == f"The backup {target} cannot be read: No such file or directory"


async def test_a_project_that_nobody_has_pushed_to_is_no_problem(scene: Scene) -> None:
    settings = scene.forge.settings
    for command, said in (
        ("check", "All checked repositories are intact."),
        ("pack", "nothing was pushed to it yet"),
    ):
        done = await asyncio.to_thread(
            of_server, settings.database_url, settings.data_dir, "repository", command
        )
        assert done.exit_code == 0, done.output
        assert said in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_file_of_before_and_no_other(tmp_path: Path, number: signal.Signals) -> None:
    target = tmp_path / "today.forgelet"
    target.write_text("of yesterday")

    def begin_and_stop() -> None:
        with ENDING_TIDILY(), backup._target(str(target)) as stream:
            stream.write(b"begun")
            assert len([*tmp_path.glob("today.forgelet.unfinished-*")]) == 1
            signal.raise_signal(number)

    with pytest.raises(SystemExit) as stopped:
        begin_and_stop()
    assert stopped.value.code == 128 + number
    assert [one.read_text() for one in tmp_path.iterdir()] == ["of yesterday"]


async def test_what_a_killed_restore_leaves_is_no_instance(
    new_database: Callable[[], str], scene: Scene, file: Path, empty: Places
) -> None:
    (empty.data_dir / UNFINISHED_RESTORE).mkdir(parents=True)
    refused = mistake(await scene.restore(file, empty))
    assert refused.startswith(f"A restore into {empty.data_dir} is under way, or was killed: ")
    with pytest.raises(secrets.UnusableKey, match="was killed"):
        secrets.ensure_key(new_database(), empty.data_dir)
    assert not (empty.data_dir / secrets.KEY_FILE).exists()


#: The external URL of both instances.
URL = "http://forge.example"
#: Fields that change between two readings because of the reading.
MOVING = {"last_used_at", "last_activity_at", "current_sign_in_at", "contacted_at"}


@attrs.frozen
class Kept:
    """A backup, and the answers of its instance."""

    text: bytes
    made: BackedUp
    furnished: Furnished
    answers: dict[str, Any]
    secret_key: str


async def answers_of(furnished: Furnished) -> dict[str, Any]:
    """Return the answers of all reading routes, without fields that change by themselves."""
    found = {}
    for route in ROUTES:
        if route.method == "GET":
            answer = await furnished.read(route)
            found[name_of(route)] = (answer.status, at_rest(answer.body))
    return found


def at_rest(body: Any) -> Any:
    if isinstance(body, dict):
        return {name: at_rest(value) for name, value in body.items() if name not in MOVING}
    return [at_rest(one) for one in body] if isinstance(body, list) else body


@pytest.fixture(scope="module")
async def kept(new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Kept:
    folder = tmp_path_factory.mktemp("kept")
    async with running_forge(new_database(), folder, external_url=URL) as forge:
        here = attrs.evolve(forge, settings=attrs.evolve(forge.settings, external_url=""))
        furnished = await furnish(here)
        await chain.keep_present_head(forge.database, forge.server.app[SERVICES].objects)
        answers = await answers_of(furnished)
        text, made = await backed_up(forge)
    return Kept(text, made, furnished, answers, (folder / secrets.KEY_FILE).read_text())


@contextlib.asynccontextmanager
async def again(places: Places) -> AsyncIterator[Forge]:
    async with running_forge(places.database_url, places.data_dir, external_url=URL) as forge:
        yield forge


async def test_every_answer_is_the_same(kept: Kept, empty: Places) -> None:
    told = await asyncio.to_thread(restored, empty, kept.text)
    assert (told.projects, told.objects, told.missing) == (kept.made.projects, kept.made.objects, [])
    assert empty.data_dir.stat().st_mode & 0o777 == 0o700
    async with again(empty) as forge:
        base = f"http://127.0.0.1:{forge.settings.port}"
        client = attrs.evolve(kept.furnished.root, session=forge.session, base=base)
        answers = await answers_of(attrs.evolve(kept.furnished, root=client))
        assert {status for status, _ in answers.values()} == {200, 302}
        assert {name: answers[name] for name in answers if answers[name] != kept.answers[name]} == {}
        known = await chain.kept_heads(forge.server.app[SERVICES].objects)
        assert known
        assert (await verify_chain(forge.database, known)).problem is None
        assert [
            gone async for gone in sweep.missing(forge.database, forge.server.app[SERVICES].objects)
        ] == []


def test_no_secret_is_in_clear(kept: Kept) -> None:
    contents = []
    with tarfile.open(fileobj=io.BytesIO(kept.text)) as tar:
        for entry in tar:
            found = tar.extractfile(entry)
            content = found.read() if found is not None else b""
            contents.append(gzip.decompress(content) if entry.name.endswith(".gz") else content)
    together = b"\n".join(contents)
    assert kept.made.rows > 50
    for secret in (kept.secret_key, ROOT_TOKEN, kept.furnished.job_token, PASSPHRASE):
        assert secret.encode() not in together


async def test_an_older_schema_is_brought_up_to_date(
    kept: Kept, empty: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This version has one more migration."""
    file = migrate._file
    newer = shutil.copytree(str(file("migrations")), tmp_path / "migrations")
    (newer / "9999_added.sql").write_text("ALTER TABLE users ADD added text NOT NULL DEFAULT 'yes'")
    monkeypatch.setattr(migrate, "_file", lambda name: newer if name == "migrations" else file(name))
    told = await asyncio.to_thread(restored, empty, kept.text)
    assert told.migrations == ["9999_added"]
    with autocommitting(empty.database_url) as cursor:
        cursor.execute("SELECT added, username FROM users WHERE id = 1")
        assert cursor.fetchone() == ("yes", "root")
    async with again(empty) as forge:
        client = attrs.evolve(forge.root, base=f"http://127.0.0.1:{forge.settings.port}")
        assert (await client.get("/user")).body["username"] == "root"
