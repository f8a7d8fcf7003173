"""Background work: the worker's life, the sweep, and an object store that is away."""

import asyncio
import contextlib
import copy
import datetime
import hashlib
import io
import logging
import os
import zipfile
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from api_server.app import create_app, endpoint
from api_server.audit import chain
from api_server.ci.jobs import artifact_queries
from api_server.ci.jobs.logs import logs_of, seal
from api_server.code import lfs_queries
from api_server.operations.watch import WATCH
from api_server.settings import Settings
from api_server.state import sweep
from api_server.state.errors import Unavailable
from api_server.state.object_store import open_objects
from api_server.state.objects import Objects
from api_server.web.context import SERVICES
from common import operations
from common.serving import working
from forgelet.command_line import forgelet
from tests.api_server.status_checks.receiver import answer, running_receiver
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Answer, Forge, running_forge
from tests.support.logs import lines_of_this_test
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.ports import free_port
from tests.support.runner import RunningJob, a_runner
from tests.support.s3 import serving_bucket
from tests.support.waiting import until


async def test_a_worker_does_what_a_server_without_work_has_queued(new_forge: Any) -> None:
    async with new_forge() as forge:
        project = await forge.project(initialize_with_readme=True)
        assert (await forge.root.delete(f"/projects/{project['id']}")).status == 202
        folder = forge.settings.data_dir / "repositories"
        assert list(folder.rglob("HEAD"))
        settings = attrs.evolve(forge.settings, work=True, operations_port=free_port())

        async def is_removed() -> bool:
            return not list(folder.rglob("HEAD"))

        with lines_of_this_test() as lines:
            async with working(endpoint(settings), create_app(settings)):
                await until(is_removed)
                assert await readiness(forge, settings.operations_port) == "ok"
        assert [line["event"] for line in lines[:2]] == ["listening", "background work has begun"]


async def readiness(forge: Forge, port: int) -> Any:
    async with forge.session.get(f"http://127.0.0.1:{port}/-/readiness") as answer:
        return (await answer.json())["background"]["status"]


def test_a_worker_can_do_what_a_server_with_other_settings_has_queued(tmp_path: Path) -> None:
    """It would mark an unknown task as permanently failed."""

    (tmp_path / "secret_key").write_text("ab" * 32)

    def tasks(**settings: Any) -> set[str]:
        chosen = Settings(database_url="postgresql:///none", data_dir=tmp_path, **settings)
        return set(create_app(chosen)[SERVICES].queue.names)

    assert tasks() == tasks(edge_urls=["http://127.0.0.1:1"], status_check_timeout=60)


LONG_ENOUGH = 3.0
#: Lines that are logged once an hour and once a day on purpose.
HOURLY, TOLD = "head of the audit trail", {"keep_audit_head", "sweep_objects"}
UNDER_WAY = """
    SELECT (SELECT count(*) FROM procrastinate_jobs)
        + (SELECT count(*) FROM status_check_deliveries WHERE status = 'queued')
        + (SELECT count(*) FROM remote_mirrors WHERE update_status = 'started')
"""


async def furnish(forge: Forge) -> None:
    """Create a project with a merge request, a status check that was notified of it, and an unreachable mirror."""
    alice = await forge.user("alice")
    project = await new_project(forge, alice)
    url = f"/projects/{project['id']}"
    async with running_receiver() as receiver:
        receiver.answers = [answer(204)]
        check = {"name": "QA", "external_url": receiver.url}
        assert (await alice.api.post(f"{url}/external_status_checks", check)).status == 201
        mirror = {"url": "http://127.0.0.1:9/mirror.git", "enabled": False}
        assert (await alice.api.post(f"{url}/remote_mirrors", mirror)).status == 201
        await open_merge_request(alice, project)
        await until_nothing_is_under_way(forge)


async def until_nothing_is_under_way(forge: Forge) -> None:
    async with asyncio.timeout(20):
        while await forge.database.value(UNDER_WAY):
            await asyncio.sleep(0.1)


async def test_a_server_that_nobody_calls_writes_nothing(new_forge: Any) -> None:
    async with new_forge(work=True, allow_local_requests=True) as forge:
        await furnish(forge)
        before = -1
        async with asyncio.timeout(60):  # sent deliveries are recorded
            while forge.database.generation != before:
                before = forge.database.generation
                await asyncio.sleep(1)
        await asyncio.sleep(LONG_ENOUGH)
        assert forge.database.generation == before


async def test_a_server_that_nobody_calls_says_nothing(
    new_forge: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests for its state cause no log lines either while it is well."""
    with lines_of_this_test() as lines:
        async with new_forge(work=True, allow_local_requests=True, disk_reserve=0) as forge:
            lines.clear()  # lines of the start
            caplog.set_level(logging.INFO)
            periodic = forge.server.app[SERVICES].queue._app.periodic_registry.periodic_tasks
            for entry in periodic.values():
                if entry.task.name not in TOLD:
                    await entry.task.func(timestamp=0)
            await forge.server.app[SERVICES][WATCH].check_now()
            for path in operations.ROUTES:
                assert (await forge.anonymous.get(f"{forge.base}{path}")).status == 200
        said = [line["event"] for line in lines if line["log_level"] != "debug"]
        assert [event for event in said if event != HOURLY] == []
        ours = [record for record in caplog.records if not record.name.startswith("aiohttp.access")]
        assert [record for record in ours if record.levelno > logging.DEBUG] == []


async def test_periodic_tasks_that_find_nothing_to_do_write_nothing(new_forge: Any) -> None:
    async with new_forge(status_check_timeout=60) as forge:
        periodic = forge.server.app[SERVICES].queue._app.periodic_registry.periodic_tasks
        tasks = {entry.task.name: entry.task for entry in periodic.values()}
        assert len(tasks) > 10
        for name, task in tasks.items():
            before = forge.database.generation
            await task.func(timestamp=0)
            assert forge.database.generation == before, name


AGE = datetime.timedelta(hours=1)
HOURS_AGO = 2 * 3600
LFS_OBJECT = """
    INSERT INTO lfs_objects (project_id, oid, size, object_key, created_at)
    VALUES (%(project_id)s, encode(sha256(%(key)s::bytea), 'hex'), 1, %(key)s, %(now)s)
"""


@pytest.fixture(scope="module")
async def here(new_database: Any, tmp_path_factory: Any) -> AsyncIterator[Forge]:
    async with running_forge(new_database(), tmp_path_factory.mktemp("sweep"), work=False) as forge:
        yield forge


@pytest.fixture(scope="module")
async def project(here: Forge) -> CiProject:
    return await ci_project(here)


async def pieces(content: bytes = b"x") -> AsyncIterator[bytes]:
    yield content


async def named(forge: Forge, project: CiProject, objects: Objects) -> set[str]:
    """Return the keys of an archive with its index, a log and an LFS object, all of which have rows."""
    runner = await a_runner(forge, project_id=project.id)
    await project.pipeline()
    job = await runner.job()
    assert (await job.upload(b"no zip archive")).status == 201
    await job.log(b"a line\n")
    await job.finish()
    await seal(logs_of(forge.server.app[SERVICES]), job.id)
    key = f"projects/{project.id}/lfs/{os.urandom(8).hex()}"
    async with forge.database.transaction() as transaction:
        await transaction.run(LFS_OBJECT, project_id=project.id, key=key)
        keys = await transaction.value(
            "SELECT array_agg(object_key) FROM (SELECT object_key FROM job_artifacts WHERE job_id = %(id)s"
            " UNION SELECT object_key FROM job_logs WHERE job_id = %(id)s) keys",
            id=job.id,
        )
        (archive,) = [one for one in keys if "/log-" not in one]
    for one in [key, *keys, f"{archive}.index"]:
        if not await objects.exists(one):
            await objects.put(one, pieces())
    return {key, *keys, f"{archive}.index"}


async def orphans(project: CiProject, objects: Objects) -> set[str]:
    """Create objects as killed requests leave them: of existing and missing jobs, and of a deleted project."""
    job = (await project.job())["id"]
    found = {
        f"projects/{project.id}/jobs/{job}/aaaa",
        f"projects/{project.id}/jobs/{job}/aaaa.index",
        f"projects/{project.id}/jobs/{job}/log-aaaa",
        f"projects/{project.id}/jobs/999999999/aaaa",
        f"projects/{project.id}/lfs/aaaa",
        "projects/999999999/lfs/aaaa",
        "projects/999999999/jobs/1/aaaa.index",
    }
    for key in found:
        await objects.put(key, pieces())
    return found


async def swept(forge: Forge, objects: Objects, *, dry_run: bool = False) -> tuple[set[str], set[str]]:
    """Return the keys of objects, and the names of files of unfinished uploads."""
    root = forge.settings.data_dir / "repositories"
    found = [one async for one in sweep.sweep(forge.database, objects, AGE, root, dry_run=dry_run)]
    return {one.key for each in found for one in each.objects}, {
        file.name for each in found for file in each.unfinished
    }


async def keys_of(objects: Objects) -> set[str]:
    return {key async for key in objects.keys("projects")}


def make_old(folder: Path) -> None:
    for file in [folder, *folder.rglob("*")]:
        times = file.stat().st_mtime - HOURS_AGO
        os.utime(file, (times, times))


async def test_of_local_files(here: Forge, project: CiProject, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = here.server.app[SERVICES].objects
    folder = here.settings.data_dir / "objects"
    kept = await named(here, project, objects)
    lost = await orphans(project, objects)
    other = {"projects/7777777/something/else", "audit/heads/1"}
    for key in other:
        await objects.put(key, pieces())
    (folder / "projects/7777777/lfs").mkdir(parents=True, exist_ok=True)
    (folder / "projects/7777777/lfs/bbbb#1").write_text("cut off")
    (folder / "projects/7777777/lfs/empty").mkdir()
    make_old(folder)
    new = f"projects/{project.id}/lfs/new"
    await objects.put(new, pieces())
    (folder / "projects/7777777/lfs/cccc#1").write_text("arrives")
    assert await swept(here, objects, dry_run=True) == (lost, {"bbbb#1"})
    assert await keys_of(objects) >= lost | kept | {new}
    assert await swept(here, objects) == (lost, {"bbbb#1"})
    assert await keys_of(objects) & (lost | kept | other | {new}) == kept | {
        new,
        "projects/7777777/something/else",
    }
    assert {file.name for file in (folder / "projects/7777777/lfs").iterdir()} == {"cccc#1"}
    assert [key async for key in objects.keys("audit")] == ["audit/heads/1"]
    assert [key async for key in objects.keys("sweep")] == []
    assert await swept(here, objects) == (set(), set())
    await objects.delete([new, *other])
    (folder / "projects/7777777/lfs/cccc#1").unlink()


async def test_of_s3(
    here: Forge, project: CiProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """S3 dates an object by the beginning of its upload, so it is checked once more before the removal."""

    async def arrive() -> None:
        async with here.database.transaction() as transaction:
            await transaction.run(LFS_OBJECT, project_id=project.id, key=late)

    async with serving_bucket(monkeypatch) as (bucket, _):
        objects = open_objects("s3://bucket/forgelet", tmp_path)
        kept = await named(here, project, objects)
        lost = await orphans(project, objects)
        late = f"projects/{project.id}/lfs/late"
        await objects.put(late, pieces())
        kept.add(late)
        bucket.new = "2027-01-01T02:00:00.000Z"
        monkeypatch.setattr(sweep, "_rows_that_arrive", arrive)
        assert await swept(here, objects) == (lost, set())
        assert await keys_of(objects) == kept


async def test_the_clock_of_the_store_counts(here: Forge, project: CiProject) -> None:
    """The application's clock may have been moved, so it does not count: new objects stay."""
    objects = here.server.app[SERVICES].objects
    lost = await orphans(project, objects)
    jumped = copy.copy(here.database)
    jumped._clock = lambda: here.database.now + datetime.timedelta(days=2)
    root = here.settings.data_dir / "repositories"
    assert [found async for found in sweep.sweep(jumped, objects, AGE, root)] == []
    await objects.delete(lost)


async def test_the_command_says_what_it_removes_and_what_is_missing(here: Forge, project: CiProject) -> None:
    objects = here.server.app[SERVICES].objects
    kept = await named(here, project, objects)
    lost = await orphans(project, objects)
    make_old(here.settings.data_dir / "objects")
    gone = next(key for key in kept if "/log-" in key)
    await objects.delete([gone])
    environment = {
        "FORGELET_API_DATABASE_URL": here.settings.database_url,
        "FORGELET_API_DATA_DIR": str(here.settings.data_dir),
    }

    async def run(*arguments: str) -> tuple[int, list[str]]:
        done = await asyncio.to_thread(CliRunner().invoke, forgelet, ["store", *arguments], env=environment)
        return done.exit_code, done.output.splitlines()

    status, lines = await run("sweep", "--dry-run")
    assert (status, lines[-1]) == (
        0,
        f"would be removed: {len(lost)} objects of {len(lost)} bytes, 0 unfinished uploads",
    )
    assert set(lines[:-1]) == {f"{key}: 1 bytes, no row names it" for key in lost}
    assert await keys_of(objects) >= lost
    status, lines = await run("sweep")
    assert (status, lines[-1]) == (0, "removed: 7 objects of 7 bytes, 0 unfinished uploads")
    status, lines = await run("check")
    assert (status, [line.split() for line in lines if gone in line]) == (1, [["logs", gone]])
    assert not await keys_of(objects) & lost


LOG = b"a line\n" * 1000
CONTENT = bytes(range(256)) * 20_000
OID = hashlib.sha256(CONTENT).hexdigest()


@attrs.frozen
class Scene:
    """A project with a finished job that has an archive and a log, and a running one; and an LFS object."""

    forge: Forge
    project: CiProject
    finished: RunningJob
    running: RunningJob
    archive: bytes

    async def lfs(self, method: str, oid: str, content: bytes) -> Answer:
        credentials = b64encode(f"any:{self.project.forge.root.token}".encode()).decode()
        size = f"/{len(content)}" if method == "PUT" else ""
        url = f"{self.forge.base}/{self.project.path}.git/info/lfs/objects/{oid}{size}"
        options = {"data": io.BytesIO(content)} if method == "PUT" else {}
        headers = {"Authorization": f"Basic {credentials}"}
        return await self.forge.anonymous.request(method, url, headers=headers, **options)

    async def each(self) -> dict[str, Answer]:
        """Return one request of each kind that needs the store, by name."""
        job = f"{self.project.url}/jobs/{self.finished.id}"
        other = b"another object"
        return {
            "upload": await self.running.upload(self.archive),
            "download": await self.project.api.get(f"{job}/artifacts"),
            "file of an archive": await self.project.api.get(f"{job}/artifacts/file.txt"),
            "log": await self.project.api.get(f"{job}/trace"),
            "lfs upload": await self.lfs("PUT", hashlib.sha256(other).hexdigest(), other),
            "lfs download": await self.lfs("GET", OID, CONTENT),
        }


@pytest.fixture(scope="module")
async def scene(new_database: Any, tmp_path_factory: Any) -> AsyncIterator[Scene]:
    """A scene on a server of this module's own, without background work, whose object store is a folder."""
    async with running_forge(new_database(), tmp_path_factory.mktemp("away"), work=False) as forge:
        project = await ci_project(forge)
        runner = await a_runner(forge, project_id=project.id)
        await project.pipeline("one: {script: 'true'}\ntwo: {script: 'true'}\n")
        finished, running = await runner.job(), await runner.job()
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("file.txt", CONTENT)
        assert (await finished.upload(archive.getvalue())).status == 201
        await finished.log(LOG)
        await finished.finish()
        await seal(logs_of(forge.server.app[SERVICES]), finished.id)
        scene = Scene(forge, project, finished, running, archive.getvalue())
        assert (await scene.lfs("PUT", OID, CONTENT)).status == 200
        yield scene


@contextlib.contextmanager
def store_away(forge: Forge) -> Iterator[None]:
    folder = forge.settings.data_dir / "objects"
    elsewhere = folder.rename(folder.with_name("elsewhere"))
    yield
    assert not folder.exists(), "nobody makes a new one in its place"
    elsewhere.rename(folder)


async def test_every_request_is_503_until_it_is_back(scene: Scene) -> None:
    with store_away(scene.forge):
        refused = await scene.each()
        ready = await scene.forge.anonymous.get(f"{scene.forge.base}/-/readiness")
    api, lfs = {"message": "503 Service Unavailable"}, '{"message":"503 Service Unavailable"}'
    assert {name: (a.status, a.headers.get("Retry-After"), a.body) for name, a in refused.items()} == {
        name: (503, "5", lfs if name.startswith("lfs") else api) for name in refused
    }
    assert (ready.status, ready.body["status"], ready.body["object_store"]) == (
        200,
        "degraded",
        {"status": "degraded", "message": "the object store is unavailable: [Errno 2] its folder is gone"},
    )
    answered = await scene.each()
    assert {name: answer.status for name, answer in answered.items()} == {
        "upload": 201, "download": 200, "file of an archive": 200, "log": 200, "lfs upload": 200, "lfs download": 200,
    }  # fmt: skip
    assert answered["log"].body == LOG.decode()


async def test_what_runs_by_itself_fails_as_the_store_does_and_is_made_up_for(scene: Scene) -> None:
    """Sealing a log and storing the audit trail's head: nothing is lost or half-done."""
    app = scene.forge.server.app
    project = await ci_project(scene.forge)
    runner = await a_runner(scene.forge, project_id=project.id)
    await project.pipeline()
    job = await runner.job()
    await job.log(LOG)
    await job.finish()
    kept = await chain.kept_heads(app[SERVICES].objects)
    with store_away(scene.forge):
        for work in (
            seal(logs_of(app[SERVICES]), job.id),
            chain.keep_present_head(scene.forge.database, app[SERVICES].objects),
        ):
            with pytest.raises(Unavailable):
                await work
        shown = await project.api.get(f"{project.url}/jobs/{job.id}/trace")
        assert (shown.status, shown.body) == (200, LOG.decode())  # it is still in the database
    await seal(logs_of(app[SERVICES]), job.id)
    await chain.keep_present_head(scene.forge.database, app[SERVICES].objects)
    shown = await project.api.get(f"{project.url}/jobs/{job.id}/trace")
    assert (shown.status, shown.body) == (200, LOG.decode())
    assert len(await chain.kept_heads(app[SERVICES].objects)) == len(kept) + 1


async def test_an_upload_whose_commit_went_unanswered_keeps_its_object(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row may exist: a repeated upload is then answered that it exists, so its object has to exist too."""
    project = await ci_project(scene.forge)
    runner = await a_runner(scene.forge, project_id=project.id)
    await project.pipeline()
    job = await runner.job()
    content = b"of an LFS object"
    oid = hashlib.sha256(content).hexdigest()
    _lose_answers(monkeypatch, artifact_queries, "add_artifact")
    _lose_answers(monkeypatch, lfs_queries, "add_object")
    assert (await job.upload(scene.archive)).status == 503
    assert (await scene.lfs("PUT", oid, content)).status == 503
    monkeypatch.undo()
    assert (await job.upload(scene.archive)).status == 201
    assert (await scene.lfs("PUT", oid, content)).status == 200
    archive = await project.api.get(f"{project.url}/jobs/{job.id}/artifacts/file.txt")
    assert (archive.status, archive.headers["Content-Length"]) == (200, str(len(CONTENT)))
    stored = await scene.lfs("GET", oid, content)
    assert (stored.status, stored.body) == (200, content.decode())


def _lose_answers(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """Commit the transactions in which this is called, and lose the answers."""
    original = getattr(module, name)

    async def add(transaction: Any, *arguments: Any, **values: Any) -> bool:
        commit = transaction.commit

        async def unanswered() -> None:
            await commit()
            raise Unavailable("the database")

        transaction.commit = unanswered
        return bool(await original(transaction, *arguments, **values))

    monkeypatch.setattr(module, name, add)


async def test_an_answer_that_has_begun_is_cut_off(scene: Scene) -> None:
    """The object is shorter than its row says, as after a disk's failure."""
    objects = scene.forge.settings.data_dir / "objects/projects" / str(scene.project.id)
    (lfs,) = [file for file in objects.glob("lfs/*") if file.stat().st_size == len(CONTENT)]
    (archive,) = [
        file
        for file in objects.glob(f"jobs/{scene.finished.id}/*")
        if file.stat().st_size == len(scene.archive)
    ]
    download = scene.project.api.get(f"{scene.project.url}/jobs/{scene.finished.id}/artifacts")
    for file, request in ((lfs, scene.lfs("GET", OID, CONTENT)), (archive, download)):
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(aiohttp.ClientPayloadError):
            await asyncio.wait_for(request, 20)  # at once, instead of when the idle connection is closed
        file.write_bytes(whole)


async def test_a_log_whose_object_is_lost_is_not_there_and_a_line_says_so(scene: Scene) -> None:
    """The answer is neither begun and cut off, nor logged as a closed connection of the client."""
    app = scene.forge.server.app
    key = await scene.forge.database.value(
        "SELECT object_key FROM job_logs WHERE job_id = %(id)s", id=scene.finished.id
    )
    file = app[SERVICES].objects.folder / key
    elsewhere = file.rename(file.with_name("elsewhere"))
    with capture_logs() as lines:
        answer = await scene.project.api.get(f"{scene.project.url}/jobs/{scene.finished.id}/trace")
    elsewhere.rename(file)
    assert answer.status == 404
    told = {line["event"]: line for line in lines}
    assert told["the log of a job is gone from the object store"]["job_id"] == scene.finished.id
    assert told["request"]["status"] == 404
