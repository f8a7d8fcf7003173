"""A runner takes a job, tells how it goes, and ends it."""

from tests.support.ci import ci_project, eventually
from tests.support.forge import Forge
from tests.support.runner import a_runner, checksum

TWO_STAGES = """
stages: [build, test]
build:
  stage: build
  script: make
  artifacts: {paths: [out/], expire_in: 1 week}
test:
  stage: test
  script: make check
  variables: {GREETING: "hello $CI_JOB_NAME"}
"""


async def test_a_job_goes_from_request_to_success(forge: Forge) -> None:
    project = await ci_project(forge)
    runner = await a_runner(forge, project_id=project.id)
    pipeline = await project.pipeline(TWO_STAGES)
    build = await runner.job()
    assert (await project.statuses(pipeline)) == {"build": "running", "test": "created"}
    await build.log(b"made\n")
    assert (
        await build.upload(b"PK\5\6" + 18 * b"\0", artifact_type="archive", artifact_format="zip")
    ).status == 201
    answer = await build.update("success", output=checksum(b"made\n"))
    assert (answer.status, answer.body, answer.headers["Job-Status"]) == (200, "200", "success")
    test = await runner.job()
    assert test.variables["GREETING"] == "hello test"
    assert [one["name"] for one in test.payload["dependencies"]] == ["build"]
    await test.finish()
    assert await project.status(pipeline) == "success"
    log = await project.api.get(f"{project.url}/jobs/{build.id}/trace")
    assert (log.status, log.body) == (200, "made\n")

    async def sealed():
        shown = (await project.api.get(f"{project.url}/jobs/{build.id}")).body
        return shown if len(shown["artifacts"]) == 2 else None

    shown = await eventually(sealed)
    assert shown["artifacts"] == [
        {"file_type": "archive", "size": 22, "filename": "artifacts.zip", "file_format": "zip"},
        {"file_type": "trace", "size": 5, "filename": "job.log", "file_format": "raw"},
    ]
    assert (await project.api.get(f"{project.url}/jobs/{build.id}/trace")).body == "made\n"
