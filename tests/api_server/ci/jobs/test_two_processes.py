"""Two API processes on one database: what one of them deletes is gone for the other, and never half there."""

import asyncio
import contextlib
import io
import zipfile

import aiohttp
import pytest

from api_server.ci.jobs.queries import find_job
from api_server.ci.pipelines.queries import find_pipeline
from api_server.state.database import REMEMBERED_FOR
from api_server.state.errors import NotFound
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Answer, Client, Forge
from tests.support.runner import a_runner
from tests.support.waiting import until

#: What there is to read of a job, and what there is to do with it.
READS = ("", "/trace", "/artifacts", "/artifacts/out.txt")
ACTIONS = ("cancel", "retry", "play", "erase", "artifacts/keep")
ROUNDS = 10


async def finished_job(forge: Forge) -> tuple[CiProject, int, int]:
    """A project, and the ids of a pipeline and of its job, which has left a log and an archive."""
    project = await ci_project(forge)
    runner = await a_runner(forge, project_id=project.id)
    pipeline = await project.pipeline()
    job = await runner.job()
    await job.log(b"a log\n")
    assert (await job.upload(_archive())).status == 201
    await job.finish()
    return project, pipeline["id"], job.id


def _archive() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as writer:
        writer.writestr("out.txt", "out\n")
    return packed.getvalue()


async def reads(client: Client, url: str) -> list[int]:
    return [(await client.get(url + path)).status for path in READS]


async def test_an_erased_job_has_no_log_and_no_artifacts_anywhere(two_forges: tuple[Forge, Forge]) -> None:
    one, other = two_forges
    project, _, job_id = await finished_job(one)
    url = f"{project.url}/jobs/{job_id}"
    assert await reads(other.root, url) == [200] * 4
    assert (await one.root.post(f"{url}/erase")).status == 201
    assert await reads(other.root, url) == [200, 404, 404, 404]
    assert (await other.root.get(url)).body["erased_at"] is not None


async def test_a_job_goes_with_its_pipeline_everywhere_at_once(two_forges: tuple[Forge, Forge]) -> None:
    one, other = two_forges
    project, pipeline_id, job_id = await finished_job(one)
    url = f"{project.url}/jobs/{job_id}"
    assert await reads(other.root, url) == [200] * 4
    assert (await one.root.delete(f"{project.url}/pipelines/{pipeline_id}")).status == 204
    assert await reads(other.root, url) == [404] * 4
    for action in ACTIONS:
        answer = await other.root.post(f"{url}/{action}")
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"})
    for path in ("", "/jobs", "/bridges"):
        answer = await other.root.get(f"{project.url}/pipelines/{pipeline_id}{path}")
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"})
    assert (await other.root.get(f"{project.url}/jobs")).body == []


async def test_a_job_goes_with_its_project_everywhere_at_once(two_forges: tuple[Forge, Forge]) -> None:
    """The other process may remember the project for less than a second, but nothing that is in it."""
    one, other = two_forges
    project, pipeline_id, job_id = await finished_job(one)
    url = f"{project.url}/jobs/{job_id}"
    assert await reads(other.root, url) == [200] * 4
    assert (await one.root.delete(project.url)).status == 202
    assert await reads(other.root, url) == [404] * 4
    assert [(await other.root.post(f"{url}/{action}")).status for action in ACTIONS] == [404] * 5
    assert (await other.root.get(f"{project.url}/pipelines/{pipeline_id}/jobs")).status == 404
    gone = (404, {"message": "404 Project Not Found"})
    listed = await other.root.get(f"{project.url}/jobs")
    assert (listed.status, listed.body) in (gone, (200, []))
    await asyncio.sleep(REMEMBERED_FOR)
    listed = await other.root.get(f"{project.url}/jobs")
    assert (listed.status, listed.body) == gone


async def test_what_a_removed_project_leaves_for_a_while_is_not_found(new_forge) -> None:
    """The other process may remember the project, and the task that removes pipelines and jobs takes its time."""
    async with new_forge(work=False) as forge:
        project, pipeline_id, job_id = await finished_job(forge)
        assert (await forge.root.delete(project.url)).status == 202
        assert await forge.database.value("SELECT count(*) FROM jobs") == 1
        assert await find_job(forge.database, project.id, job_id) is None
        with pytest.raises(NotFound):
            await find_pipeline(forge.database, project.id, pipeline_id)


async def test_reading_a_job_while_it_is_deleted_gives_all_of_it_or_404(
    two_forges: tuple[Forge, Forge],
) -> None:
    one, other = two_forges
    project = await ci_project(one)
    for _ in range(ROUNDS):
        pipeline = await project.pipeline()
        (job,) = (await project.jobs(pipeline)).values()
        where = f"{project.url}/pipelines/{pipeline['id']}"
        stop = asyncio.Event()
        seen: list[set[int]] = []
        readers = [
            asyncio.create_task(_read(client, path, expected, stop, seen))
            for client in (one.root, other.root)
            for path, expected in (
                (f"{project.url}/jobs/{job['id']}", job["id"]),
                (where, pipeline["id"]),
                (f"{where}/jobs", [job["id"]]),
            )
            for _ in range(2)
        ]
        await _until_seen(seen, [{200}] * len(readers))
        assert (await one.root.delete(where)).status == 204
        await _until_seen(seen, [{200, 404}] * len(readers))
        stop.set()
        await asyncio.gather(*readers)


async def _until_seen(seen: list[set[int]], expected: list[set[int]]) -> None:
    await until(lambda: seen == expected)


async def _read(
    client: Client, path: str, expected: int | list[int], stop: asyncio.Event, all_seen: list[set[int]]
) -> None:
    """Read again and again until the end, and look at what comes; put the statuses into a set of `all_seen`."""
    seen: set[int] = set()
    all_seen.append(seen)
    while not stop.is_set():
        answer = await client.get(path)
        seen.add(answer.status)
        if answer.status == 200:
            assert _ids(answer) in (expected, []), answer
        else:
            assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


def _ids(answer: Answer) -> int | list[int]:
    """Of an entity its id, of a list the ids of what is in it (in the end nothing any more)."""
    return [one["id"] for one in answer.body] if isinstance(answer.body, list) else answer.body["id"]


async def test_a_log_that_is_erased_while_it_is_read_is_whole_or_cut_off(
    two_forges: tuple[Forge, Forge],
) -> None:
    one, other = two_forges
    log = b"a line of the log\n" * 50_000
    for _ in range(ROUNDS):
        project = await ci_project(one)
        runner = await a_runner(one, project_id=project.id)
        await project.pipeline()
        job = await runner.job()
        await job.log(log)
        await job.finish()
        url = f"{project.url}/jobs/{job.id}"
        reading = [asyncio.create_task(_read_log(other, f"{url}/trace")) for _ in range(3)]
        await asyncio.sleep(0.005)
        assert (await one.root.post(f"{url}/erase")).status == 201
        assert set(await asyncio.gather(*reading)) <= {log.decode(), None}


async def _read_log(forge: Forge, path: str) -> str | None:
    """None where there is none any more, or the connection ends before its end."""
    with contextlib.suppress(aiohttp.ClientError):
        answer = await forge.root.get(path)
        if answer.status == 200:
            return str(answer.body)
        assert answer.status == 404
    return None
