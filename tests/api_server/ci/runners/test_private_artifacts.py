"""`artifacts:access`, and `public` before it: archives that only some may read, wherever they are read."""

import pytest

from api_server.web.routes import Role
from tests.api_server.ci.runners.test_artifacts import ZIP, read
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Forge, Person
from tests.support.runner import RunningJob, a_runner

CONFIGURATION = """
stages: [one, two]
build: {{stage: one, script: 'true', artifacts: {{paths: [out/], {access}}}}}
test: {{stage: two, script: 'true'}}
"""
REFUSED = (403, b'{"message":"403 Forbidden"}')


async def built(forge: Forge, access: str) -> tuple[CiProject, RunningJob, RunningJob]:
    """A public project whose `build` has left an archive, that job, and `test` of its pipeline, which is over too."""
    project = await ci_project(forge, visibility="public")
    runner = await a_runner(forge, project_id=project.id)
    await project.pipeline(CONFIGURATION.format(access=access))
    job = await runner.job()
    assert (await job.upload(ZIP)).status == 201
    await job.finish()
    later = await runner.job()
    # What a job of the same pipeline needs, it gets, whoever may read it otherwise.
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
