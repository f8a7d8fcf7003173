"""What people and runners are told while the object store is away: 503 and when to come back, until it is there."""

import asyncio
import contextlib
import hashlib
import io
import zipfile
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import attrs
import pytest
from structlog.testing import capture_logs

from api_server.audit import chain
from api_server.ci.jobs import artifact_queries
from api_server.ci.jobs.logs import logs_of, seal
from api_server.code import lfs_queries
from api_server.state.errors import Unavailable
from api_server.state.objects import OBJECTS
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Answer, Forge, running_forge
from tests.support.runner import RunningJob, a_runner

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
        """One request of each kind that needs the store, by name."""
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
    """On a server of this module's own, without background work, whose object store is a folder."""
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
        await seal(logs_of(forge.server.app), finished.id)
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
    """Sealing a log and keeping the audit trail's head: nothing is lost, nothing is there by half."""
    app = scene.forge.server.app
    project = await ci_project(scene.forge)
    runner = await a_runner(scene.forge, project_id=project.id)
    await project.pipeline()
    job = await runner.job()
    await job.log(LOG)
    await job.finish()
    kept = await chain.kept_heads(app[OBJECTS])
    with store_away(scene.forge):
        for work in (seal(logs_of(app), job.id), chain.keep_present_head(scene.forge.database, app[OBJECTS])):
            with pytest.raises(Unavailable):
                await work
        shown = await project.api.get(f"{project.url}/jobs/{job.id}/trace")
        assert (shown.status, shown.body) == (200, LOG.decode())  # it is in the database still
    await seal(logs_of(app), job.id)
    await chain.keep_present_head(scene.forge.database, app[OBJECTS])
    shown = await project.api.get(f"{project.url}/jobs/{job.id}/trace")
    assert (shown.status, shown.body) == (200, LOG.decode())
    assert len(await chain.kept_heads(app[OBJECTS])) == len(kept) + 1


async def test_an_upload_whose_commit_went_unanswered_keeps_its_object(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row may be there: whoever brings the same once more is told that it is, and then it had better be."""
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
    """The transactions in which this is called are committed, and nobody hears of it."""
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
            await asyncio.wait_for(request, 20)  # at once, and not when the idle connection is closed
        file.write_bytes(whole)


async def test_a_log_whose_object_is_lost_is_not_there_and_a_line_says_so(scene: Scene) -> None:
    """It is not begun and cut off, nor logged as if the client had gone."""
    app = scene.forge.server.app
    key = await scene.forge.database.value(
        "SELECT object_key FROM job_logs WHERE job_id = %(id)s", id=scene.finished.id
    )
    file = app[OBJECTS].folder / key
    elsewhere = file.rename(file.with_name("elsewhere"))
    with capture_logs() as lines:
        answer = await scene.project.api.get(f"{scene.project.url}/jobs/{scene.finished.id}/trace")
    elsewhere.rename(file)
    assert answer.status == 404
    told = {line["event"]: line for line in lines}
    assert told["the log of a job is gone from the object store"]["job_id"] == scene.finished.id
    assert told["request"]["status"] == 404
