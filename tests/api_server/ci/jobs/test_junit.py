"""Reading of JUnit's XML, and the test reports of pipelines."""

import asyncio
import contextlib
import gzip
import shutil
import struct
import time
from collections.abc import Iterator
from typing import Any

import gitlab
import orjson
import pytest
from cachetools import LRUCache
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.jobs import junit
from api_server.ci.jobs.junit import BrokenReport, Budget, JobSuite, Suite, TooManyCases, report, summary
from api_server.ci.jobs.report_handlers import READERS, Readers
from api_server.web.context import SERVICES
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Forge, SharedForges
from tests.support.runner import RunningJob, a_runner

MANY = 1000


def read(*documents: str | bytes, most: int = MANY) -> dict[str, Any]:
    """Return the only suite of a job that has reported these documents."""
    suite, room = Suite("rspec"), Budget(most, 20 * MANY)
    for document in documents:
        data = document.encode() if isinstance(document, str) else document
        junit.read_junit(iter([data[:7], data[7:]]), suite, room)
    return dict(report([JobSuite(1, suite)])["test_suites"][0])


def cases_of(inner: str) -> list[tuple[Any, ...]]:
    shown = read(f"<testsuite>{inner}</testsuite>")["test_cases"]
    return [(one["status"], one["name"], one["execution_time"], one["system_output"]) for one in shown]


def test_a_suite_is_shown_with_its_cases_the_worst_and_slowest_first() -> None:
    suite = read(
        '<?xml version="1.0" encoding="UTF-8"?><testsuites><testsuite name="unit">'
        '<testcase name="quick" classname="a" file="a.py" time="0.5"/>'
        '<testcase name="slow" classname="a" time="2"/>'
        '<testcase name="left out"><skipped/></testcase>'
        '<testcase name="wrong" time="1"><failure message="m" type="T">expected\n1</failure></testcase>'
        '<testsuite name="inner"><testcase name="broken"><error type="E" message="no"/></testcase></testsuite>'
        "</testsuite></testsuites>"
    )
    cases = suite.pop("test_cases")
    assert suite == {
        "name": "rspec", "total_time": 3.5, "total_count": 5, "success_count": 2, "failed_count": 1,
        "skipped_count": 1, "error_count": 1, "suite_error": None,
    }  # fmt: skip
    assert [case["name"] for case in cases] == ["broken", "wrong", "slow", "quick", "left out"]
    assert cases[0]["system_output"] == {"type": "E", "message": "no"}
    assert list(cases[3].items()) == [
        ("status", "success"), ("name", "quick"), ("classname", "a"), ("file", "a.py"), ("execution_time", 0.5),
        ("system_output", None), ("stack_trace", None), ("recent_failures", None),
    ]  # fmt: skip
    assert cases[1]["system_output"] == "expected\n1"


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ("<testcase/>", ("success", "(No name)", 0.0, None)),
        ('<testcase name="a" time="1,234.5"/>', ("success", "a", 1.0, None)),
        ('<testcase name="a" time="much"/>', ("success", "a", 0.0, None)),
        ('<testcase name="a" time="1e400"/>', ("success", "a", 0.0, None)),
        ('<testcase name="a" time="-1e400"/>', ("success", "a", 0.0, None)),
        ('<testcase name="a"><failure/></testcase>', ("failed", "a", 0.0, None)),
        ('<testcase name="a"><failure type="T"/></testcase>', ("failed", "a", 0.0, None)),
        ('<testcase name="a"><failure>1</failure><failure>2</failure></testcase>', ("failed", "a", 0.0, ["1", "2"])),
        ('<testcase name="a"><failure><![CDATA[<b>]]></failure></testcase>', ("failed", "a", 0.0, "<b>")),
        ('<testcase name="a"><skipped/><error>e</error></testcase>', ("error", "a", 0.0, "e")),
        ('<testcase name="a"><skipped message="later"/></testcase>', ("skipped", "a", 0.0, {"message": "later"})),
        ('<testcase name="a"><system-out><failure/></system-out></testcase>', ("success", "a", 0.0, None)),
    ],
)  # fmt: skip
def test_single_cases(inner: str, expected: tuple[Any, ...]) -> None:
    assert cases_of(inner) == [expected]


def test_what_is_no_suite_has_no_cases() -> None:
    inner = '<testcase name="a"/>'
    for document in (f"<other>{inner}</other>", inner, f"<testsuite><other>{inner}</other></testsuite>", b""):
        assert read(document)["total_count"] == 0
    assert read(f"<testsuites>{inner}</testsuites>")["total_count"] == 1


def test_a_case_that_comes_again_counts_once_and_its_time_twice() -> None:
    suite = read('<testsuite name="s"><testcase name="a" time="1"/><testcase name="a" time="2"/></testsuite>')
    assert (suite["total_count"], suite["total_time"]) == (1, 3.0)


BOMB = (
    '<!DOCTYPE testsuite [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    '<testsuite><testcase name="&b;"/></testsuite>'
)
OUTSIDE = (
    '<!DOCTYPE t [<!ENTITY a SYSTEM "file:///etc/passwd">]><testsuite><testcase>&a;</testcase></testsuite>'
)


#: The default values of each case.
DEFAULTS = (
    f'<!DOCTYPE t [<!ATTLIST testcase classname CDATA "{"x" * 300_000}">]>'
    f"<testsuite>{'<testcase/>' * 900}</testsuite>"
)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ("no XML", "JUnit XML parsing failed: syntax error: line 1, column 0"),
        ("<testsuite><testcase></testsuite>", "JUnit XML parsing failed: mismatched tag: line 1, column 23"),
        ("<testsuite>", "JUnit XML parsing failed: no element found: line 1, column 11"),
        (BOMB, "JUnit XML parsing failed: a DOCTYPE is not allowed"),
        (OUTSIDE, "JUnit XML parsing failed: a DOCTYPE is not allowed"),
        (DEFAULTS, "JUnit XML parsing failed: a DOCTYPE is not allowed"),
        ("<!DOCTYPE a><a/>", "JUnit XML parsing failed: a DOCTYPE is not allowed"),
        ("<a>" + "<b/>" * 20_000 + "</a>", "JUnit data parsing failed: there are too many elements"),
        ("<a>" * 200, "JUnit data parsing failed: elements are more than 100 deep"),
        (
            '<?xml version="1.0" encoding="nobodys"?><a/>',
            "JUnit data parsing failed: unknown encoding: nobodys",
        ),
    ],
)
def test_what_cannot_be_read_says_why(document: str, told: str) -> None:
    with pytest.raises(BrokenReport) as refused:
        read(document)
    assert str(refused.value) == told


@pytest.mark.parametrize(
    "token",
    [
        '<testcase name="{}"/>',
        "<{}/>",
        "<!--{}-->",
        "<?x {}?>",
        "<testcase><failure message='{}'/></testcase>",
    ],
)
def test_a_tag_or_comment_is_bounded_however_it_comes(token: str) -> None:
    def read_in_pieces(length: int) -> Suite:
        suite, data = Suite("s"), f"<testsuite>{token.format('x' * length)}</testsuite>".encode()
        junit.read_junit((data[at : at + 2**16] for at in range(0, len(data), 2**16)), suite, Budget(9, 9))
        return suite

    began = time.thread_time()
    read_in_pieces(junit.MAX_TOKEN - 1_000)
    with pytest.raises(BrokenReport, match="a tag is longer than 262144 bytes"):
        read_in_pieces(10_000_000)
    assert time.thread_time() - began < 1


def test_long_texts_of_a_case_are_cut_off() -> None:
    long, cut = "x" * 200_000, junit.CUT
    (case,) = read(f'<testsuite><testcase name="{long}"><failure>{long}</failure></testcase></testsuite>')[
        "test_cases"
    ]
    assert case["name"] == "x" * junit.MAX_ATTRIBUTE + cut
    assert case["system_output"] == "x" * junit.MAX_TEXT + cut
    lines = "x\n" * 100_000
    (case,) = read(f"<testsuite><testcase><error>{lines}</error></testcase></testsuite>")["test_cases"]
    assert case["system_output"] == lines[: junit.MAX_TEXT] + cut
    fits = "x\n" * (junit.MAX_TEXT // 2)
    (case,) = read(f"<testsuite><testcase><error>{fits}</error></testcase></testsuite>")["test_cases"]
    assert case["system_output"] == fits
    (case,) = read(f"<testsuite><testcase><error message='{long}'/></testcase></testsuite>")["test_cases"]
    assert case["system_output"] == {"message": "x" * junit.MAX_ATTRIBUTE + cut}
    many = "<failure>no</failure>" * 500
    (case,) = read(f"<testsuite><testcase>{many}</testcase></testsuite>")["test_cases"]
    assert case["system_output"] == ["no"] * junit.MAX_VERDICTS


def test_no_more_cases_than_are_wanted_are_read() -> None:
    assert read("<testsuite><testcase/><testcase/></testsuite>", most=2)["total_count"] == 1
    with pytest.raises(TooManyCases):
        read("<testsuite><testcase/><testcase/></testsuite>", most=1)


def test_an_error_empties_its_suite_and_is_told_by_the_summary() -> None:
    good, bad = Suite("good"), Suite("bad")
    junit.read_junit(iter([b'<testsuite><testcase time="2"/></testsuite>']), good, Budget(9, 9))
    junit.read_junit(iter([b"<testsuite><testcase><error/></testcase></testsuite>"]), bad, Budget(9, 9))
    bad.error = "why"
    jobs = [JobSuite(1, good), JobSuite(2, bad), JobSuite(3, good)]
    shown = summary(jobs)
    assert shown["total"] == {
        "time": 4.0, "count": 2, "success": 2, "failed": 0, "skipped": 0, "error": 0, "suite_error": "why"
    }  # fmt: skip
    assert shown["test_suites"] == [
        {
            "name": "good", "total_time": 4.0, "total_count": 2, "success_count": 2, "failed_count": 0,
            "skipped_count": 0, "error_count": 0, "build_ids": [1, 3], "suite_error": None,
        },
        {
            "name": "bad", "total_time": 0.0, "total_count": 0, "success_count": 0, "failed_count": 0,
            "skipped_count": 0, "error_count": 0, "build_ids": [2], "suite_error": "why",
        },
    ]  # fmt: skip
    whole = report(jobs)
    assert [(one["name"], one["suite_error"], len(one["test_cases"])) for one in whole["test_suites"]] == [
        ("good", None, 1), ("bad", "why", 0)
    ]  # fmt: skip
    assert report([])["total_count"] == summary([])["total"]["count"] == 0


FILES = [b"<a/>", b"", b"x" * 300_000]


@pytest.mark.parametrize(
    ("packed", "files"),
    [
        (b"".join(gzip.compress(file) for file in FILES), FILES),
        (gzip.compress(FILES[0]) + b"\0" * 20, FILES[:1]),
        (FILES[2], FILES[2:]),
        (b"", [b""]),
    ],
    ids=["gzip", "padded", "bare", "nothing"],
)
def test_files_are_found_however_they_are_packed(packed: bytes, files: list[bytes]) -> None:
    sizes: list[int] = []
    assert [b"".join(pieces) for pieces in junit.report_files(packed, sizes.append)] == files
    assert sum(sizes) == sum(len(file) for file in files)
    assert max(sizes, default=0) <= 65_536


@given(st.binary(max_size=200), st.integers(min_value=0, max_value=200))
def test_what_is_broken_is_one_of_the_known_problems(noise: bytes, at: int) -> None:
    packed = gzip.compress(FILES[0]) + gzip.compress(FILES[2])
    with contextlib.suppress(*junit.UNPACKING_ERRORS):
        for pieces in junit.report_files(packed[:at] + noise + packed[at + len(noise) :], lambda _: None):
            b"".join(pieces)


@given(st.text(alphabet="<>/ testsuiteca=\"'&;![]-0", max_size=80))
def test_nothing_but_a_broken_report_is_raised(text: str) -> None:
    try:
        read(f"<testsuite>{text}</testsuite>")
    except BrokenReport:
        return


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
    """Return a new pipeline's id, and its jobs by name, all of which a runner has taken."""
    pipeline = await project.pipeline(text)
    runner = await a_runner(forge, project_id=project.id)
    jobs = [await runner.job() for _ in await project.jobs(pipeline)]
    return pipeline["id"], {job.payload["job_info"]["name"]: job for job in jobs}


async def bring(job: RunningJob, *files: bytes) -> None:
    """Upload the files as the official runner does: as members of one gzip stream."""
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


async def test_an_answer_is_kept_that_is_larger_than_what_may_be_kept(forge: Forge) -> None:
    """It is stored compressed, so the reports of a pipeline are read once, whatever the number of their test cases
    is."""
    forge.server.app[SERVICES][READERS] = Readers(LRUCache(50_000, len))
    project = await ci_project(forge)
    pipeline_id, jobs = await running(forge, project)
    cases = b"".join(b'<testcase name="test %d" classname="a"/>' % number for number in range(2000))
    await bring(jobs["unit 1/2"], b"<testsuite>" + cases + b"</testsuite>")
    first = await reports(project, pipeline_id)
    assert len(orjson.dumps(first[0])) > 200_000
    shutil.rmtree(forge.settings.data_dir / "objects" / "projects" / str(project.id))
    assert await reports(project, pipeline_id) == first


async def test_larger_reports_may_be_kept_where_larger_ones_are_read(shared_forge: SharedForges) -> None:
    forge = await shared_forge(test_report_limit=90 * 2**20)
    assert forge.server.app[SERVICES][READERS].cache.maxsize == 90 * 2**20


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
