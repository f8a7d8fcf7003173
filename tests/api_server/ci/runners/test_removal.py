"""`forgelet jobs remove-data`: logs and artifacts of old jobs go, the jobs stay."""

import asyncio
import datetime
import os
import sys

import pytest

from api_server.ci.jobs import logs, upkeep
from api_server.ci.jobs.logs import logs_of
from api_server.web.context import SERVICES
from tests.support.ci import CiProject, ci_project, eventually
from tests.support.folders import files_below
from tests.support.forge import Forge
from tests.support.runner import RunningJob, a_runner

AGE = "UPDATE jobs SET finished_at = %(moment)s::timestamptz WHERE id = %(id)s"


async def finished_job(forge: Forge, project: CiProject, moment: str) -> RunningJob:
    """With a log of 3 bytes and an archive of 7, in two objects."""
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

        async def only_the_new_ones() -> bool:
            return len(files_below(folder)) == 3  # a log, and an archive with its index

        await eventually(only_the_new_ones)


async def test_a_run_that_was_stopped_is_gone_on_with(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "REMOVAL_BATCH", 1)
    project = await ci_project(forge)
    jobs = [await finished_job(forge, project, "1999-01-01T00:00:00Z") for _ in range(3)]
    moment = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    run = upkeep.remove_before(forge.database, moment, dry_run=False)
    assert await anext(run) == upkeep.Removed(1, 10)
    await run.aclose()
    assert [(await statuses(project, job))[1] for job in jobs] == [404, 200, 200]
    async for _ in upkeep.remove_before(forge.database, moment, dry_run=False):
        pass
    assert [(await statuses(project, job))[1] for job in jobs] == [404, 404, 404]
