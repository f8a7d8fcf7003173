"""How much artifacts may be: of one project together, in one archive, and of the disk."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from tests.api_server.ci.runners.test_artifacts import ZIP, archive, artifacts_of, read
from tests.support.ci import CiProject, ci_project, eventually
from tests.support.folders import files_below
from tests.support.forge import Answer, Forge, SharedForges
from tests.support.runner import RunningJob, a_runner
from tests.support.waiting import until_somebody_waits
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
    """One upload has half of the project's room and stands still: another of more than the rest is refused before
    its body is read, and taken once the first has gone."""
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

        await eventually(taken)


async def _until_refused(job: RunningJob) -> Answer:
    """An upload of more than is left while another arrives. (What that one has sent reaches the server a moment
    later.)"""
    authorize = f"/jobs/{job.id}/artifacts/authorize"
    async with asyncio.timeout(20):
        while True:
            headers = {"JOB-TOKEN": job.token}
            answer = await job.client.post(authorize, {"filesize": 6 * MIB}, headers=headers)
            if answer.status == 413:
                return await job.upload(bytes(6 * MIB))


HOLD_JOBS = "SELECT count(*) FROM (SELECT FROM jobs WHERE project_id = %(id)s FOR UPDATE) held"


async def test_uploads_at_once_never_make_more_than_the_limit(forge: Forge, new_forge) -> None:
    """Two processes, which know nothing of what arrives at the other: the database has the last word."""
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
