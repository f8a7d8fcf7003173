"""`test_report` and `test_report_summary` of pipelines, out of what their jobs have uploaded."""

import asyncio
import gzip
import shutil
import struct
from collections.abc import Iterator
from typing import Any

import gitlab
import pytest

from tests.support.ci import CiProject, ci_project
from tests.support.forge import Forge
from tests.support.runner import RunningJob, a_runner

GOOD = b'<testsuite name="s"><testcase name="one" classname="c" time="1.5"/></testsuite>'
BAD = b'<testsuite name="s"><testcase name="two"><failure>no</failure></testcase></testsuite>'
#: The end of a zip archive whose list of files would begin before its first byte.
ARCHIVE = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 1, 0, 0)
TEXT = """
unit: {script: echo, parallel: 2, artifacts: {reports: {junit: '*.xml'}}}
matrix: {script: echo, parallel: {matrix: [{A: [x, y]}]}, artifacts: {reports: {junit: '*.xml'}}}
plain: {script: echo}
"""


async def running(forge: Forge, project: CiProject, text: str = TEXT) -> tuple[int, dict[str, RunningJob]]:
    """A new pipeline's id, and its jobs by name, all of them in a runner's hands."""
    pipeline = await project.pipeline(text)
    runner = await a_runner(forge, project_id=project.id)
    jobs = [await runner.job() for _ in await project.jobs(pipeline)]
    return pipeline["id"], {job.payload["job_info"]["name"]: job for job in jobs}


async def bring(job: RunningJob, *files: bytes) -> None:
    """The files as the official runner sends them: members of one gzip stream."""
    packed = b"".join(gzip.compress(file) for file in files)
    await bring_packed(job, packed, "gzip")


async def bring_packed(job: RunningJob, packed: bytes, kind: str) -> None:
    answer = await job.upload(packed, "junit.xml.gz", artifact_type="junit", artifact_format=kind)
    assert answer.status == 201, answer


async def reports(project: CiProject, pipeline_id: int) -> tuple[dict[str, Any], dict[str, Any]]:
    url = f"{project.url}/pipelines/{pipeline_id}/test_report"
    found = [await project.api.get(f"{url}{path}") for path in ("", "_summary")]
    assert [answer.status for answer in found] == [200, 200]
    return found[0].body, found[1].body


async def test_the_reports_of_a_pipelines_jobs_are_put_together(forge: Forge) -> None:
    project = await ci_project(forge)
    pipeline_id, jobs = await running(forge, project)
    assert await reports(project, pipeline_id) == (
        {
            "total_time": 0, "total_count": 0, "success_count": 0, "failed_count": 0, "skipped_count": 0,
            "error_count": 0, "test_suites": [],
        },
        {
            "total": {
                "time": 0, "count": 0, "success": 0, "failed": 0, "skipped": 0, "error": 0, "suite_error": None
            },
            "test_suites": [],
        },
    )  # fmt: skip
    await bring(jobs["unit 1/2"], GOOD)
    await bring(jobs["unit 2/2"], BAD, GOOD.replace(b"one", b"three"))
    await bring(jobs["matrix: [x]"], GOOD)
    await bring_packed(jobs["matrix: [y]"], ARCHIVE, "zip")
    whole, counts = await reports(project, pipeline_id)
    assert {key: whole[key] for key in list(whole)[:-1]} == {
        "total_time": 4.5, "total_count": 4, "success_count": 3, "failed_count": 1, "skipped_count": 0,
        "error_count": 0,
    }  # fmt: skip
    error = "JUnit XML parsing failed: not well-formed (invalid token): line 1, column 2"
    unit, first, second = whole["test_suites"]
    assert [(one["name"], one["total_count"], one["suite_error"]) for one in (unit, first, second)] == [
        ("unit", 3, None), ("matrix: [x]", 1, None), ("matrix: [y]", 0, error)
    ]  # fmt: skip
    assert [(one["status"], one["name"], one["system_output"]) for one in unit["test_cases"]] == [
        ("failed", "two", "no"), ("success", "one", None), ("success", "three", None)
    ]  # fmt: skip
    assert second["test_cases"] == []
    assert counts["total"] == {
        "time": 4.5, "count": 4, "success": 3, "failed": 1, "skipped": 0, "error": 0, "suite_error": error
    }  # fmt: skip
    assert [one["build_ids"] for one in counts["test_suites"]] == [
        [jobs["unit 1/2"].id, jobs["unit 2/2"].id], [jobs["matrix: [x]"].id], [jobs["matrix: [y]"].id]
    ]  # fmt: skip

    def use() -> None:
        api = gitlab.Gitlab(forge.base, private_token=project.developer.token)
        pipeline = api.projects.get(project.id).pipelines.get(pipeline_id)
        assert pipeline.test_report.get().test_suites == whole["test_suites"]
        assert pipeline.test_report_summary.get().total == counts["total"]

    await asyncio.to_thread(use)
    for path in ("test_report", "test_report_summary"):
        missing = await project.api.get(f"{project.url}/pipelines/999999999/{path}")
        assert (missing.status, missing.body) == (404, {"message": "404 Not found"})


async def test_what_has_been_read_is_not_read_again(forge: Forge) -> None:
    project = await ci_project(forge)
    pipeline_id, jobs = await running(forge, project)
    await bring(jobs["unit 1/2"], GOOD)
    first = await reports(project, pipeline_id)
    shutil.rmtree(forge.settings.data_dir / "objects" / "projects" / str(project.id))
    assert await reports(project, pipeline_id) == first
    await bring(jobs["unit 2/2"], BAD)
    whole, counts = await reports(project, pipeline_id)
    assert (whole["failed_count"], counts["total"]["failed"]) == (1, 1)


@pytest.fixture
def narrow(forge: Forge) -> Iterator[Forge]:
    with forge.changed_settings(test_report_limit=1000, test_cases_limit=3):
        yield forge


async def test_no_more_is_read_than_the_settings_say(narrow: Forge) -> None:
    project = await ci_project(narrow)
    text = "".join(f"{name}: {{script: echo}}\n" for name in "abcd")
    pipeline_id, jobs = await running(narrow, project, text)
    await bring(jobs["a"], GOOD)
    await bring(jobs["b"], b"<testsuite>" + b"<testcase/>" * 3 + b"</testsuite>")
    await bring(jobs["c"], b"<testsuite>" + b" " * 1000 + b"</testsuite>")
    await bring_packed(jobs["d"], b"<" * 1001, "raw")
    whole, _ = await reports(project, pipeline_id)
    too_large = "JUnit data parsing failed: the reports of the pipeline are too large"
    assert [one["suite_error"] for one in whole["test_suites"]] == [
        None, "JUnit data parsing failed: number of test cases exceeded the limit of 3", too_large, too_large
    ]  # fmt: skip
