"""The size limits of artifacts, how uploads and reports are read, and how old artifacts are removed."""

import asyncio
import contextlib
import datetime
import os
import sys
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import gitlab
import pytest
from hypothesis import given
from hypothesis import strategies as some

from api_server.ci.jobs import logs, upkeep
from api_server.ci.jobs.logs import logs_of
from api_server.ci.runners import uploads
from api_server.ci.runners.uploads import _Parts
from api_server.git.repositories import REPOSITORIES
from api_server.web.context import SERVICES
from tests.api_server.ci.runners.test_artifacts import ZIP, archive, artifacts_of, read
from tests.support.ci import ONE_JOB, CiProject, ci_project
from tests.support.folders import files_below
from tests.support.forge import Answer, Forge, SharedForges
from tests.support.runner import Runner, RunningJob, a_runner
from tests.support.waiting import until, until_somebody_waits
from tests.support.zips import many_members

TWO = "build: {script: 'true'}\nother: {script: 'true'}\n"


def refused(reason: str) -> tuple[int, dict[str, str]]:
    return 413, {"message": f"413 Request Entity Too Large - {reason}"}


def said(answer: Answer) -> tuple[int, dict[str, str]]:
    return answer.status, answer.body


async def running(forge: Forge, text: str = TWO) -> tuple[CiProject, list[RunningJob]]:
    project = await ci_project(forge)
    runner = await a_runner(forge, project_id=project.id)
    await project.pipeline(text)
    return project, [await runner.job(), await runner.job()]


def objects_of(forge: Forge, project: CiProject) -> list[Path]:
    return files_below(forge.settings.data_dir / "objects" / "projects" / str(project.id))


async def test_an_archive_holds_no_more_than_the_limits_allow(new_forge) -> None:
    async with new_forge(artifact_members_limit=2, artifact_unpacked_limit=200_000) as forge:
        project, (job, other) = await running(forge)
        many = await job.upload(archive(a=b"", b=b"", c=b""))
        assert said(many) == refused("The archive has more than 2 files")
        large = await job.upload(archive(a=bytes(150_000), b=bytes(50_001)))
        assert said(large) == refused("The archive has more than 200000 bytes of files")
        long = await job.upload(archive(**{"n" * 4097: b""}))
        assert said(long) == refused("The archive has more than 4096 bytes in the name of a file")
        assert objects_of(forge, project) == []
        assert "archive" not in await artifacts_of(project, job)
        assert (await other.upload(ZIP)).status == 201


async def test_a_file_is_found_without_reading_the_directory_of_its_archive_again(forge: Forge) -> None:
    project, (job, _) = await running(forge)
    content = b"".join(many_members(2000))
    assert (await job.upload(content)).status == 201
    (stored,) = [file for file in objects_of(forge, project) if file.suffix != ".index"]
    directory = content.index(b"PK\1\2")
    with stored.open("r+b") as file:
        file.seek(directory)
        file.write(bytes(len(content) - directory))
    url = f"{project.url}/jobs/{job.id}/artifacts"
    token = {"PRIVATE-TOKEN": project.developer.token}
    assert await read(forge, f"{url}/d/00001999", **token) == (200, b"x")
    assert (await read(forge, f"{url}/d/00002000", **token))[0] == 404


async def test_a_file_that_breaks_while_it_is_sent_never_ends_as_if_it_were_whole(forge: Forge) -> None:
    project, (job, _) = await running(forge)
    packed = bytearray(
        archive(large=b"".join(zlib.crc32(bytes([n % 251])).to_bytes(4) for n in range(500_000)))
    )
    packed[len(packed) // 2] ^= 255
    assert (await job.upload(bytes(packed))).status == 201
    url = f"{forge.base}/api/v4{project.url}/jobs/{job.id}/artifacts/large"
    async with forge.session.get(url, headers={"PRIVATE-TOKEN": project.developer.token}) as answer:
        try:
            await answer.read()
        except aiohttp.ClientPayloadError:
            return
    raise AssertionError("the answer ended")


async def test_the_artifacts_of_a_project_have_a_limit_together(forge: Forge) -> None:
    with forge.changed_settings(project_artifacts_limit=3000):
        reason = "The artifacts of a project may take 3000 bytes together"
        project, (job, other) = await running(forge)
        authorize = f"/jobs/{other.id}/artifacts/authorize"
        token = {"JOB-TOKEN": other.token}
        before = await other.client.post(authorize, {"filesize": 3000}, headers=token)
        assert said(before) == (200, {"MaximumSize": 3000})
        assert (await job.upload(b"x" * 2000)).status == 201
        after = await other.client.post(authorize, {"filesize": 1001}, headers=token)
        assert said(after) == refused(reason)
        assert said(await other.client.post(authorize, {"filesize": 1000}, headers=token)) == (
            200,
            {"MaximumSize": 1000},
        )
        assert said(await other.upload(b"x" * 1001)) == refused(reason)
        kept = objects_of(forge, project)
        assert (await other.upload(b"x" * 1000)).status == 201
        assert len(objects_of(forge, project)) == len(kept) + 2
        elsewhere, (job, _) = await running(forge)
        assert (await job.upload(b"x" * 2000)).status == 201
        assert len(objects_of(forge, elsewhere)) == 2


MIB = 2**20


async def test_what_is_arriving_counts_and_is_let_go_of(forge: Forge) -> None:
    """One upload uses half of the project's room and then stalls. An upload of more than the rest is refused before
    its body is read, and accepted once the first has ended."""
    with forge.changed_settings(project_artifacts_limit=8 * MIB):
        _, (job, other) = await running(forge)
        sent, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            for _ in range(64):
                yield bytes(MIB // 16)
            sent.set()
            await go_on.wait()
            raise ConnectionError

        form = aiohttp.FormData()
        form.add_field("file", slow(), filename="x")
        url = f"/jobs/{job.id}/artifacts?artifact_type=archive"
        first = asyncio.create_task(job.client.post(url, data=form, headers={"JOB-TOKEN": job.token}))
        await sent.wait()
        answer = await _until_refused(other)
        assert said(answer) == refused("The artifacts of a project may take 8388608 bytes together")
        go_on.set()
        await asyncio.gather(first, return_exceptions=True)

        async def taken() -> bool:
            return (await other.upload(bytes(6 * MIB))).status == 201

        await until(taken)


async def _until_refused(job: RunningJob) -> Answer:
    """Return the refusal of an upload that is larger than the free room while another one arrives. The other one's
    bytes reach the server a moment later."""
    authorize = f"/jobs/{job.id}/artifacts/authorize"
    async with asyncio.timeout(20):
        while True:
            headers = {"JOB-TOKEN": job.token}
            answer = await job.client.post(authorize, {"filesize": 6 * MIB}, headers=headers)
            if answer.status == 413:
                return await job.upload(bytes(6 * MIB))


HOLD_JOBS = "SELECT count(*) FROM (SELECT FROM jobs WHERE project_id = %(id)s FOR UPDATE) held"


async def test_uploads_at_once_never_make_more_than_the_limit(forge: Forge, new_forge) -> None:
    """Two processes do not know about each other's uploads, so the database decides in the end."""
    with forge.changed_settings(project_artifacts_limit=3000):
        beside = {"database_url": forge.settings.database_url, "data_dir": forge.settings.data_dir}
        async with new_forge(project_artifacts_limit=3000, **beside) as twin:
            project, (job, other) = await running(forge)
            at_twin = RunningJob(twin.anonymous, other.payload)
            async with forge.database.transaction() as transaction:
                await transaction.value(HOLD_JOBS, id=project.id)
                uploads = [asyncio.create_task(each.upload(b"x" * 2000)) for each in (job, at_twin)]
                await until_somebody_waits(forge.database, count=2)
            answers = await asyncio.gather(*uploads)
            assert sorted(answer.status for answer in answers) == [201, 413]
            assert len(objects_of(forge, project)) == 2


async def test_uploads_leave_the_disk_its_reserve(shared_forge: SharedForges) -> None:
    forge = await shared_forge(disk_reserve=2**60)
    project, (job, _) = await running(forge)
    answer = await job.upload(ZIP)
    assert said(answer) == (503, {"message": "503 Service Unavailable"})
    assert answer.headers["Retry-After"] == "5"
    assert objects_of(forge, project) == []


async def test_dotenv_variables_reach_later_jobs(project: CiProject, runner: Runner) -> None:
    await project.pipeline(
        "stages: [one, two]\nbuild: {stage: one, script: 'true'}\ntest: {stage: two, script: 'true'}"
    )
    job = await runner.job()
    report = b'# made by build\nVERSION=1.2.3\nQUOTED="two words"\nCI_NODE_TOTAL=weak\n'
    assert (await job.upload(report, ".env", artifact_type="dotenv", artifact_format="raw")).status == 201
    await job.finish()
    variables = (await runner.job()).variables
    assert (variables["VERSION"], variables["QUOTED"]) == ("1.2.3", "two words")


async def test_a_broken_dotenv_report_is_400(job: RunningJob) -> None:
    of_no_index = "".join(map(str, range(1000))).encode()  # too large for an index, even compressed
    for content, text in (
        (b"no line", "Invalid Format"),
        (b"A=" + b"x" * 6000, "Dotenv Artifact Too Big"),
        (b"K" + of_no_index + b"=1", "Key is too long (maximum is 255 characters)"),
    ):
        answer = await job.upload(content, ".env", artifact_type="dotenv", artifact_format="raw")
        assert answer.status == 400
        assert text in answer.body["message"]


@given(
    some.dictionaries(
        some.from_regex(r"[A-Z_][A-Z0-9_]*", fullmatch=True),
        some.from_regex(r"[!#-&(-~]*", fullmatch=True),
        max_size=9,
    )
)
def test_dotenv_reads_what_was_written(variables: dict[str, str]) -> None:
    text = "".join(f"{key}={value}\n" for key, value in variables.items())
    assert uploads.parse_dotenv(text.encode()) == variables


@given(some.binary(max_size=200))
def test_dotenv_never_fails_otherwise_than_by_refusal(content: bytes) -> None:
    with contextlib.suppress(uploads.InvalidDotenv):
        assert len(uploads.parse_dotenv(content)) <= uploads.MAX_DOTENV_VARIABLES


FORM = (
    b"\r\n--x\r\n"
    b'Content-Disposition: form-data; name="file"; filename="C:\\\\a \\"b\\".zip"\r\n'
    b"Content-Type: application/zip\r\n\r\n"
    b"\r\n--\r\n-x\r\n\r\n--\r\n"
    b"\r\n--x \t\r\nContent-Disposition: form-data; name=field\r\n\r\n\r\n--x\r\n"
    b"content-disposition: form-data; name=\"other\"; filename*=UTF-8''%C3%A9\r\n\r\nc\r\n--x--\r\n"
)
PARTS = [
    ("file", 'C:\\a "b".zip', b"\r\n--\r\n-x\r\n\r\n--\r\n"),
    ("field", None, b""),
    ("other", "é", b"c"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, len(FORM)])
async def test_parts_are_found_wherever_the_body_is_cut(size: int) -> None:
    async def coming() -> AsyncIterator[bytes]:
        for at in range(0, len(FORM), size):
            yield FORM[at : at + size]

    parts, found = _Parts(coming(), 'multipart/form-data; boundary="x"'), []
    while part := await parts.next():
        found.append((*part, b"".join([piece async for piece in parts.content()])))
    assert found == PARTS


AGE = "UPDATE jobs SET finished_at = %(moment)s::timestamptz WHERE id = %(id)s"


async def finished_job(forge: Forge, project: CiProject, moment: str) -> RunningJob:
    """Return a job with a log of 3 bytes and an archive of 7, in two objects."""
    runner = await a_runner(forge, project_id=project.id)
    await project.pipeline()
    job = await runner.job()
    await job.log(b"log")
    assert (await job.upload(b"archive", expire_in="never")).status == 201
    await job.finish()
    await logs.seal(logs_of(forge.server.app[SERVICES]), job.id)
    await forge.execute(AGE, id=job.id, moment=moment)
    return job


async def command(forge: Forge, *arguments: str) -> tuple[int, str]:
    environment = os.environ | {
        "FORGELET_API_DATABASE_URL": forge.settings.database_url,
        "FORGELET_API_DATA_DIR": str(forge.settings.data_dir),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forgelet", "jobs", "remove-data", *arguments,
        env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def statuses(project: CiProject, job: RunningJob) -> list[int]:
    url = f"{project.url}/jobs/{job.id}"
    return [(await project.api.get(url + path)).status for path in ("", "/trace", "/artifacts")]


async def test_the_command(new_forge) -> None:
    async with new_forge(work=True) as forge:
        project = await ci_project(forge)
        old = await finished_job(forge, project, "2020-01-31T23:59:59Z")
        new = await finished_job(forge, project, "2020-02-01T00:00:00Z")
        assert await command(forge, "--before", "2020-02-01", "--dry-run") == (
            0, "would be removed: 10 bytes of 1 jobs\n",
        )  # fmt: skip
        assert await statuses(project, old) == [200, 200, 200]
        code, output = await command(forge, "--before", "2020-02-01")
        assert (code, "Aborted" in output) == (1, True)
        assert await statuses(project, old) == [200, 200, 200]
        assert await command(forge, "--before", "2020-02-01", "--yes") == (0, "removed: 10 bytes of 1 jobs\n")
        assert await statuses(project, old) == [200, 404, 404]
        assert await statuses(project, new) == [200, 200, 200]
        assert await command(forge, "--before", "2020-02-01", "--yes") == (0, "removed: 0 bytes of 0 jobs\n")
        folder = forge.settings.data_dir / "objects" / "projects"

        await until(lambda: len(files_below(folder)) == 3, seconds=30)


async def test_a_run_that_was_stopped_is_gone_on_with(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "REMOVAL_BATCH", 1)
    project = await ci_project(forge)
    jobs = [await finished_job(forge, project, "1999-01-01T00:00:00Z") for _ in range(3)]
    moment = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    run = upkeep.remove_before(forge.database, moment, dry_run=False)
    assert await anext(run) == upkeep.RemovedBatch(1, 10)
    await run.aclose()
    assert [(await statuses(project, job))[1] for job in jobs] == [404, 200, 200]
    async for _ in upkeep.remove_before(forge.database, moment, dry_run=False):
        pass
    assert [(await statuses(project, job))[1] for job in jobs] == [404, 404, 404]


class Scene:
    """A project whose pipelines have one job each, with an archive and a log."""

    def __init__(self, project: CiProject, runner: Runner) -> None:
        self.project, self.runner = project, runner

    async def run(self, state: str = "success", branch: str = "topic") -> int:
        """Return the id of the job of a new pipeline."""
        await self.project.pipeline(ONE_JOB, branch=branch)
        return await self.work(state)

    async def run_on_tag(self, tag: str) -> int:
        root, url = self.project.forge.root, self.project.url
        await root.post(f"{url}/repository/tags", {"tag_name": tag, "ref": "topic"}, expect=201)
        assert (await root.post(f"{url}/pipeline", {"ref": tag})).status == 201
        return await self.work("success")

    async def work(self, state: str) -> int:
        job = await self.runner.job()
        await job.log(b"a log")
        assert (await job.upload(b"an archive", expire_in="never")).status == 201
        await job.finish(state)
        return job.id

    async def kept(self) -> set[int]:
        """Return the ids of the jobs that have an archive."""
        jobs: list[dict[str, Any]] = (
            await self.project.api.get(f"{self.project.url}/jobs?per_page=100")
        ).body
        return {job["id"] for job in jobs if "artifacts_file" in job}


async def a_scene(forge: Forge) -> Scene:
    project = await ci_project(forge)
    return Scene(project, await a_runner(forge, project_id=project.id))


async def test_what_is_not_the_newest_of_its_ref_goes(forge: Forge) -> None:
    scene = await a_scene(forge)
    project = scene.project
    old, last_success = await scene.run(), await scene.run()
    failed = [await scene.run("failed") for _ in range(2)]
    of_deleted_branch = await scene.run(branch="gone")
    never_succeeded = [await scene.run("failed", branch="other") for _ in range(2)]
    of_tag = await scene.run_on_tag("v1")
    everything = {old, last_success, *failed, of_deleted_branch, *never_succeeded, of_tag}
    assert await scene.kept() == everything
    assert (await forge.root.delete(f"{project.url}/repository/branches/gone")).status == 204
    await upkeep.delete_all_but_the_newest(
        forge.database, forge.server.app[SERVICES][REPOSITORIES], project.id, batch=3
    )
    assert await scene.kept() == {last_success, failed[1], never_succeeded[1], of_tag}
    shown = (await project.api.get(f"{project.url}/jobs/{old}")).body
    assert ([one["file_type"] for one in shown["artifacts"]], shown["artifacts_expire_at"]) == (
        ["trace"],
        None,
    )


async def test_python_gitlab_has_them_deleted_with_their_bytes(forge: Forge) -> None:
    scene = await a_scene(forge)
    old, newest = await scene.run(), await scene.run()
    objects = forge.settings.data_dir / "objects" / "projects" / str(scene.project.id) / "jobs" / str(old)

    def use() -> None:
        api = gitlab.Gitlab(forge.base, private_token=forge.root.token)
        api.projects.get(scene.project.id).artifacts.delete()

    async def is_done() -> bool:
        return await scene.kept() == {newest} and len(files_below(objects)) == 1  # the log

    log = await scene.project.api.get(f"{scene.project.url}/jobs/{old}/trace")
    await asyncio.to_thread(use)
    await until(is_done)
    assert (await scene.project.api.get(f"{scene.project.url}/jobs/{old}/trace")).body == log.body == "a log"


async def test_the_answer_and_who_may(forge: Forge) -> None:
    project = await ci_project(forge)
    url = f"{project.url}/artifacts"
    refused = await project.api.delete(url)
    assert (refused.status, refused.body) == (403, {"message": "403 Forbidden"})
    answer = await forge.root.delete(url)
    assert (answer.status, answer.body) == (202, {"message": "202 Accepted"})
    assert (await forge.root.post(f"{project.url}/archive")).status == 201
    assert (await forge.root.delete(url)).status == 403
    await upkeep.delete_all_but_the_newest(
        forge.database, forge.server.app[SERVICES][REPOSITORIES], 999_999_999
    )
