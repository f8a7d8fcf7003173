"""Objects that no row names are swept, what rows name never is, in both stores; and rows are held against objects."""

import asyncio
import copy
import datetime
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from api_server.ci.jobs.logs import logs_of, seal
from api_server.state import sweep
from api_server.state.object_store import open_objects
from api_server.state.objects import Objects
from api_server.web.context import SERVICES
from forgelet.command_line import forgelet
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Forge, running_forge
from tests.support.runner import a_runner
from tests.support.s3 import serving_bucket

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
    """The keys of an archive with its index, a log and an LFS object, all of which have rows."""
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
    """What killed requests leave: of jobs that there are, and are not, and of a project that is gone."""
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
    """The keys of objects, and the names of files of unfinished uploads."""
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
    """Which dates what took long to arrive by its beginning: it is looked at once more before it is removed."""

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
    """Not the application's, which may have jumped: what is new stays."""
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
