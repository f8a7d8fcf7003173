"""Artifacts: runners upload them; people with the right read them, also by names of refs; they are kept, expire and
are deleted."""

import asyncio
import errno
import os
from typing import Any
from unittest.mock import Mock

import gitlab
import orjson
import pytest

from api_server.ci.jobs import upkeep
from api_server.ci.jobs.artifact_handlers import media_type
from api_server.git.repositories import Repository
from api_server.state import disk
from api_server.web.routes import Role
from tests.support.ci import CiProject, ci_project
from tests.support.folders import files_below
from tests.support.forge import Forge, Person
from tests.support.runner import Runner, RunningJob, a_runner
from tests.support.waiting import until, until_somebody_waits
from tests.support.zips import archive

CHAIN = """
stages: [one, two]
build: {stage: one, script: 'true', artifacts: {paths: [out/]}}
other: {stage: one, script: 'true', when: manual}
test: {stage: two, script: 'true'}
"""


ZIP = archive(out__a_b_txt=b"a\n" * 50_000, out__empty=b"")


@pytest.fixture
async def job(project: CiProject, runner: Runner) -> RunningJob:
    await project.pipeline(CHAIN)
    return await runner.job()


async def artifacts_of(project: CiProject, job: RunningJob) -> dict:
    shown = (await project.api.get(f"{project.url}/jobs/{job.id}")).body
    return {one["file_type"]: one for one in shown["artifacts"]} | {"expires": shown["artifacts_expire_at"]}


async def read(forge: Forge, path: str, **headers: str) -> tuple[int, bytes]:
    async with forge.session.get(f"{forge.base}/api/v4{path}", headers=headers) as answer:
        return answer.status, await answer.read()


async def test_types_and_formats(project: CiProject, job: RunningJob) -> None:
    assert (await job.upload(ZIP, artifact_type="archive", artifact_format="zip")).status == 201
    assert (
        await job.upload(b"<x/>", "junit.xml.gz", artifact_type="junit", artifact_format="gzip")
    ).status == 201
    assert (
        await job.upload(b"meta", "metadata.gz", artifact_type="metadata", artifact_format="gzip")
    ).status == 201
    found = await artifacts_of(project, job)
    assert found["archive"] == {
        "file_type": "archive", "size": len(ZIP), "filename": "artifacts.zip", "file_format": "zip",
    }  # fmt: skip
    assert found["junit"]["file_format"] == "gzip"
    assert found["metadata"]["size"] == 4
    answer = await job.upload(b"x", artifact_type="no_such")
    assert (answer.status, answer.body) == (
        400,
        {"message": "400 Bad request - no_such is no type of artifact"},
    )


async def test_fields_may_come_in_the_form_behind_the_file(project: CiProject, job: RunningJob) -> None:
    body = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="../../etc/some b.zip"\r\n\r\n'
        + ZIP
        + b'\r\n--x\r\nContent-Disposition: form-data; name="artifact_format"\r\n\r\nzip'
        b'\r\n--x\r\nContent-Disposition: form-data; name="artifact_type"\r\n\r\narchive\r\n--x--\r\n'
    )
    headers = {"JOB-TOKEN": job.token, "Content-Type": "multipart/form-data; boundary=x"}
    await job.client.request("POST", f"/jobs/{job.id}/artifacts", data=body, headers=headers, expect=201)
    assert (await artifacts_of(project, job))["archive"]["filename"] == "some b.zip"


async def test_the_same_again_is_201_and_another_400(
    forge: Forge, project: CiProject, job: RunningJob
) -> None:
    assert [(await job.upload(content)).status for content in (ZIP, ZIP, b"other")] == [201, 201, 400]
    folder = forge.settings.data_dir / "objects" / "projects" / str(project.id)
    assert len(files_below(folder)) == 2  # with its index


async def test_uploads_need_the_token_of_a_running_job(runner: Runner, job: RunningJob) -> None:
    for token in ("fljob-wrong", runner.token, ""):
        other = RunningJob(job.client, job.payload | {"token": token})
        assert (await other.upload(ZIP)).status == 403
    await job.finish()
    answer = await job.upload(ZIP)
    assert (answer.status, answer.body) == (403, {"message": "403 Forbidden - Job is not running"})


async def test_what_is_too_large_is_413_and_leaves_nothing(forge: Forge) -> None:
    with forge.changed_settings(artifact_limit=1000):
        project = await ci_project(forge)
        runner = await a_runner(forge, project_id=project.id)
        await project.pipeline()
        job = await runner.job()
        assert (await job.upload(b"x" * 1000)).status == 201
        assert (await job.upload(b"x" * 1001, artifact_type="junit")).status == 413
        authorize = f"/jobs/{job.id}/artifacts/authorize"
        for size, status in ((1000, 200), (1001, 413)):
            headers = {"JOB-TOKEN": job.token}
            assert (await job.client.post(authorize, {"filesize": size}, headers=headers)).status == status
        folder = forge.settings.data_dir / "objects" / "projects" / str(project.id)
        assert len(files_below(folder)) == 2  # with its index


async def test_a_form_of_very_many_parts_is_400(job: RunningJob) -> None:
    """This applies also to parts of the same name."""
    part = b'--x\r\nContent-Disposition: form-data; name="artifact_type"\r\n\r\narchive\r\n'
    headers = {"JOB-TOKEN": job.token, "Content-Type": "multipart/form-data; boundary=x"}
    path = f"/jobs/{job.id}/artifacts"
    answer = await job.client.request("POST", path, data=part * 1_000 + b"--x--\r\n", headers=headers)
    assert answer.body == {"message": "400 Bad request - the form is not understood"}


#: A valid form, unless there is something before or after it.
_FORM = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nb\r\n--x--\r\n'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--x\r\n",
        b"nonsense",
        b"--x\r\nno colon\r\n\r\n",
        b"\n" * 60_000 + _FORM,
        _FORM + b"\n" * 60_000,
        _FORM.replace(b"Content", b"A: b\r\n" * 10_000 + b"Content"),
        _FORM.replace(b'name="file"', b"name"),
        _FORM.removesuffix(b"--\r\n"),
    ],
    ids=["empty", "no part", "no form", "no head", "preamble", "epilogue", "long head", "no name", "cut off"],
)
async def test_broken_forms_are_400(job: RunningJob, body: bytes) -> None:
    headers = {"JOB-TOKEN": job.token, "Content-Type": "multipart/form-data; boundary=x"}
    answer = await job.client.request("POST", f"/jobs/{job.id}/artifacts", data=body, headers=headers)
    assert answer.status == 400


async def test_jobs_of_the_same_pipeline_download(
    forge: Forge, project: CiProject, runner: Runner, job: RunningJob
) -> None:
    await job.upload(ZIP)
    await job.finish()
    later = await runner.job()
    dependency = later.payload["dependencies"][0]
    assert dependency["artifacts_file"] == {"filename": "artifacts.zip", "size": len(ZIP)}
    path = f"/jobs/{dependency['id']}/artifacts?direct_download=true"
    assert await read(forge, path, **{"JOB-TOKEN": dependency["token"]}) == (200, ZIP)
    assert await read(forge, path, **{"JOB-TOKEN": job.token}) == (200, ZIP)
    assert (await read(forge, f"/jobs/{later.id}/artifacts", **{"JOB-TOKEN": later.token}))[0] == 404
    await project.pipeline()
    stranger = await runner.job()
    assert (await read(forge, path, **{"JOB-TOKEN": stranger.token}))[0] == 403
    await later.finish()
    assert (await read(forge, path, **{"JOB-TOKEN": later.token}))[0] == 403


async def test_people_download_the_archive_and_files_of_it(
    forge: Forge, project: CiProject, job: RunningJob
) -> None:
    await job.upload(ZIP)
    await job.finish()
    url = f"{project.url}/jobs/{job.id}/artifacts"
    token = {"PRIVATE-TOKEN": project.developer.token}
    assert await read(forge, url, **token) == (200, ZIP)
    assert await read(forge, url, Range="bytes=0-3", **token) == (206, ZIP[:4])
    assert await read(forge, f"{url}/out/a_b_txt", **token) == (200, b"a\n" * 50_000)
    assert await read(forge, f"{url}/out%2Fempty", **token) == (200, b"")
    for missing in ("out", "out/", "nothing", "../out/empty"):
        assert (await read(forge, f"{url}/{missing}", **token))[0] == 404
    for path in ("", "/out/a_b_txt"):
        tag = (await project.api.request("HEAD", url + path)).headers["ETag"]
        assert (await project.api.get(url + path, headers={"If-None-Match": tag})).status == 304
    stranger = await forge.user()
    assert (await stranger.api.get(url)).status == 404
    assert (await forge.anonymous.get(url)).status == 401


@pytest.mark.parametrize(
    "broken",
    [
        b"no zip",
        ZIP[:-30],
        ZIP[20:],
        archive(out__é=b"").replace("é".encode(), b"\xff\xff"),
    ],
    ids=["no zip", "without its end", "without its beginning", "a name that is no UTF-8"],
)
async def test_a_damaged_archive_has_no_files(project: CiProject, job: RunningJob, broken: bytes) -> None:
    await job.upload(broken)
    answer = await project.api.get(f"{project.url}/jobs/{job.id}/artifacts/out/a_b_txt")
    assert (answer.status, answer.body) == (404, {"message": "404 File Not Found"})


def test_types_of_files_by_their_names() -> None:
    types = {
        "a.txt": "text/plain",
        "a.HTML": "text/html",
        "a.json": "application/json",
        "a.tar": "application/x-tar",
        "a.tar.gz": "application/gzip",
        "a.tgz": "application/gzip",
        "a.svg.gz": "application/gzip",
        "a.tar.bz2": "application/x-bzip2",
        "a.log.xz": "application/x-xz",
        "a": "application/octet-stream",
        "gz": "application/octet-stream",
        "a.no-such-type": "application/octet-stream",
        "data:text/html,a": "application/octet-stream",
    }
    assert {name: media_type(name) for name in types} == types


async def test_a_file_whose_name_no_header_can_hold_is_sent_under_a_like_one(
    forge: Forge, project: CiProject, job: RunningJob
) -> None:
    await job.upload(archive(**{'a\x01\n"\\b': b"content"}))
    url = f"{project.url}/jobs/{job.id}/artifacts/a%01%0A%22%5Cb"
    answer = await project.api.get(url)
    assert (answer.status, answer.body) == (200, "content"), answer
    assert answer.headers["Content-Disposition"] == (
        "attachment; filename=\"a____b\"; filename*=UTF-8''a%01%0A%22%5Cb"
    )


async def test_by_the_name_of_a_branch(
    forge: Forge, project: CiProject, runner: Runner, job: RunningJob
) -> None:
    await job.upload(ZIP)
    await job.finish()
    token = {"PRIVATE-TOKEN": project.developer.token}
    url = f"{project.url}/jobs/artifacts/topic"
    assert (await read(forge, f"{url}/download?job=build", **token))[
        0
    ] == 404  # the pipeline has not finished
    await (await runner.job()).finish()
    assert await read(forge, f"{url}/download?job=build", **token) == (200, ZIP)
    assert await read(forge, f"{url}/raw/out/a_b_txt?job=build", **token) == (200, b"a\n" * 50_000)
    assert (await read(forge, f"{url}/download?job=test", **token))[0] == 404


EXPIRE = "UPDATE job_artifacts SET expire_at = now() - interval '1 second' WHERE job_id = %(id)s"


async def test_a_full_store_is_503_and_keeps_nothing(
    forge: Forge, project: CiProject, job: RunningJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            disk, "sync_folders", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        )
        answer = await job.upload(ZIP)
    assert (answer.status, answer.body) == (503, {"message": "503 Service Unavailable"})
    assert "archive" not in await artifacts_of(project, job)
    assert (await job.upload(ZIP)).status == 201


async def test_expiry_and_keeping(forge: Forge, project: CiProject, job: RunningJob) -> None:
    await job.upload(ZIP, expire_in="1 week")
    assert (await artifacts_of(project, job))["expires"] is not None
    await forge.execute(EXPIRE, id=job.id)
    assert (await project.api.get(f"{project.url}/jobs/{job.id}/artifacts")).status == 404
    await upkeep.expire_artifacts(forge.database)
    assert "archive" not in await artifacts_of(project, job)
    folder = forge.settings.data_dir / "objects" / "projects" / str(project.id)

    await until(lambda: not files_below(folder), seconds=30)
    await job.upload(ZIP, expire_in="1 hour")
    kept = await project.api.post(f"{project.url}/jobs/{job.id}/artifacts/keep")
    assert (kept.status, kept.body["artifacts_expire_at"]) == (200, None)


@pytest.mark.parametrize(
    ("expire_in", "status"), [("never", 201), ("3 mins 4 sec", 201), ("soon", 400), ("9000 years", 400)]
)
async def test_expire_in(job: RunningJob, expire_in: str, status: int) -> None:
    assert (await job.upload(ZIP, expire_in=expire_in)).status == status


async def test_without_expire_in_the_setting_counts(project: CiProject, job: RunningJob) -> None:
    await job.upload(ZIP)
    assert (await artifacts_of(project, job))["expires"] is not None


async def test_deleting(forge: Forge, project: CiProject, job: RunningJob) -> None:
    await job.log(b"log")
    await job.upload(ZIP)
    await job.finish()
    url = f"{project.url}/jobs/{job.id}/artifacts"
    assert (await project.api.delete(url)).status == 403
    assert (await forge.root.delete(url)).status == 204
    assert (await project.api.get(url)).status == 404
    assert (await project.api.get(f"{project.url}/jobs/{job.id}/trace")).status == 200
    assert (await project.api.post(f"{url}/keep")).status == 404


@pytest.mark.parametrize(
    ("way", "status"), [("DELETE artifacts", 204), ("POST artifacts/keep", 200), ("POST erase", 201)]
)
async def test_what_is_done_to_artifacts_waits_for_an_upload_before_it_holds_them(
    forge: Forge, project: CiProject, job: RunningJob, way: str, status: int
) -> None:
    """An upload locks the job and then looks for such an artifact; the opposite order would be a deadlock."""
    await job.upload(ZIP)
    if status == 201:
        await job.finish()
    method, path = way.split(" ")
    async with forge.database.transaction() as upload:
        await upload.run("UPDATE jobs SET contacted_at = %(now)s WHERE id = %(id)s", id=job.id)
        other = asyncio.create_task(forge.root.request(method, f"{project.url}/jobs/{job.id}/{path}"))
        await until_somebody_waits(forge.database)
        held = "SELECT count(*) FROM (SELECT FROM job_artifacts WHERE job_id = %(id)s FOR UPDATE NOWAIT) free"
        assert await upload.value(held, id=job.id) == 1
    assert (await other).status == status


async def test_python_gitlab(forge: Forge, project: CiProject, job: RunningJob) -> None:
    await job.upload(ZIP)
    await job.finish()
    client = gitlab.Gitlab(forge.base, private_token=project.developer.token)

    def use() -> None:
        found = client.projects.get(project.id).jobs.get(job.id)
        assert found.artifacts() == ZIP
        assert b"".join(found.artifacts(iterator=True)) == ZIP
        assert found.artifact("out/a_b_txt") == b"a\n" * 50_000
        found.keep_artifacts()

    await asyncio.to_thread(use)


CONFIGURATION = """
stages: [one, two]
build: {{stage: one, script: 'true', artifacts: {{paths: [out/], {access}}}}}
test: {{stage: two, script: 'true'}}
"""
REFUSED = (403, b'{"message":"403 Forbidden"}')


async def built(forge: Forge, access: str) -> tuple[CiProject, RunningJob, RunningJob]:
    """Return a public project whose job `build` has an archive, that job, and the finished job `test` of the same
    pipeline."""
    project = await ci_project(forge, visibility="public")
    runner = await a_runner(forge, project_id=project.id)
    await project.pipeline(CONFIGURATION.format(access=access))
    job = await runner.job()
    assert (await job.upload(ZIP)).status == 201
    await job.finish()
    later = await runner.job()
    # A job gets artifacts that it needs from its own pipeline, whoever else may read them.
    path = f"/jobs/{later.payload['dependencies'][0]['id']}/artifacts"
    assert await read(forge, path, **{"JOB-TOKEN": later.payload["dependencies"][0]["token"]}) == (200, ZIP)
    await later.finish()
    return project, job, later


async def readers(forge: Forge, project: CiProject) -> dict[str, Person]:
    people = {"stranger": await forge.user(), "developer": project.developer}
    for role in (Role.GUEST, Role.REPORTER, Role.MAINTAINER):
        people[role.name.lower()] = person = await forge.user()
        await forge.member("projects", project.id, person, role)
    return people


@pytest.mark.parametrize(
    ("access", "readers_of_it"),
    [
        ("public: true", {"stranger", "guest", "reporter", "developer", "maintainer"}),
        ("public: false", {"developer", "maintainer"}),
        ("access: developer", {"developer", "maintainer"}),
        ("access: maintainer", {"maintainer"}),
        ("access: none", set()),
    ],
)
async def test_only_those_read_an_archive_whom_the_file_lets(
    forge: Forge, access: str, readers_of_it: set[str]
) -> None:
    project, job, _ = await built(forge, access)
    ways = {
        f"{project.url}/jobs/{job.id}/artifacts": ZIP,
        f"{project.url}/jobs/{job.id}/artifacts/out/empty": b"",
        f"{project.url}/jobs/artifacts/topic/download?job=build": ZIP,
        f"{project.url}/jobs/artifacts/topic/raw/out/empty?job=build": b"",
    }
    for name, person in (await readers(forge, project)).items():
        may = name in readers_of_it
        got = {way: await read(forge, way, **{"PRIVATE-TOKEN": person.token}) for way in ways}
        assert got == {way: (200, content) if may else REFUSED for way, content in ways.items()}, name


CONFIG = "build: {script: 'true', artifacts: {paths: [out]}}\n"
AMBIGUOUS = {
    "message": "400 Bad request - Ref is ambiguous. 'topic' is both a branch and a tag: "
    "say refs/heads/topic or refs/tags/topic."
}


@pytest.fixture
def repository(forge: Forge, project: CiProject) -> Repository:
    return forge.repository(project.id)


async def _both(project: CiProject, ref: str) -> list[tuple[int, Any]]:
    """Return the answers of the two routes."""
    found = []
    for rest in ("download", "raw/out"):
        url = f"{project.forge.base}/api/v4{project.url}/jobs/artifacts/{ref}/{rest}?job=build"
        headers = {"PRIVATE-TOKEN": project.developer.token}
        async with project.forge.session.get(url, headers=headers) as answer:
            body = await answer.read()
            found.append((answer.status, body if answer.status == 200 else orjson.loads(body)))
    return found


async def test_a_tag_does_not_take_the_place_of_a_branch(
    project: CiProject, runner: Runner, repository: Repository
) -> None:
    """This holds while the tag exists, and after its removal."""
    expected = {}
    await project.commit(CONFIG)
    for kind, content in (("heads", b"branch"), ("tags", b"the tag's")):
        if kind == "tags":
            head = repository.lookup_reference("refs/heads/topic").target
            repository.references.create("refs/tags/topic", head)
        await project.api.post(f"{project.url}/pipeline", {"ref": f"refs/{kind}/topic"}, expect=201)
        job = await runner.job()
        packed = archive(out=content)  # only once, because the archive contains the time
        await job.upload(packed)
        await job.finish()
        expected[kind] = [(200, packed), (200, content)]
    assert await _both(project, "topic") == [(400, AMBIGUOUS)] * 2
    assert await _both(project, "refs/heads/topic") == expected["heads"]
    assert await _both(project, "refs/tags/topic") == expected["tags"]
    repository.references.delete("refs/tags/topic")
    assert await _both(project, "topic") == expected["heads"]
    repository.references.delete("refs/heads/topic")
    assert await _both(project, "topic") == expected["heads"]
