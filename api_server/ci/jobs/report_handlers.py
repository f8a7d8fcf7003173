"""`/projects/:id/pipelines/:pipeline_id/test_report` and `/test_report_summary` (supporting resources).

Reports are read on request: their bytes from the object store, their cases in a thread.
"""

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import orjson
import re2
from aiohttp import web
from cachetools import LRUCache

from api_server.ci.jobs import artifact_queries, junit
from api_server.ci.jobs.artifact_queries import StoredReport
from api_server.ci.jobs.junit import BrokenReport, JobSuite, Suite
from api_server.ci.pipelines.access import find_pipeline
from api_server.code.reading import counted_for
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.services import Key, Services
from api_server.web.answers import json_text
from api_server.web.auth import Actor, Anonymous
from api_server.web.routes import Routes
from common.concurrency import ConcurrencyLimiter

#: Pipelines whose reports are read concurrently, those of one caller, and seconds that other callers wait.
_READ_AT_A_TIME, _EACH, _TIMEOUT = 2, 1, 30
#: Bytes of compressed answers that are cached, so that the same reports need not be read again. If reports
#: may be larger, the cache is as large as they may be: an answer repeats their contents, and its additions
#: compress well.
_KEPT = 32 * 2**20
_MAX_FILES = 10_000
#: Elements that are read for each case that may be read.
_ELEMENTS_OF_A_CASE = 10
#: The numbering in the names of jobs that belong together, whether added by `parallel` or by people: `1/3`,
#: `[a, b]`.
_NUMBERING = re2.compile(r"([\s:]+(\[.*\]|\d+[\s:/\\]+\d+)){1,3}\s*\z")


@attrs.frozen
class Readers:
    """Limits how many reports are read at a time, and caches the answers, compressed: reports never
    change."""

    cache: "LRUCache[object, bytes]"
    slots: ConcurrencyLimiter = attrs.field(
        factory=lambda: ConcurrencyLimiter(_READ_AT_A_TIME, _EACH, timeout=_TIMEOUT)
    )


READERS = Key[Readers]("report_readers")


def setup(services: Services) -> None:
    services[READERS] = Readers(LRUCache(max(_KEPT, services.settings.test_report_limit), len))


@attrs.define
class _Budget:
    """The remaining limits for one pipeline."""

    bytes: int
    files: int
    xml: junit.Budget

    def take(self, size: int) -> None:
        self.bytes -= size
        if self.bytes < 0:
            raise BrokenReport("JUnit data parsing failed: the reports of the pipeline are too large")

    def take_file(self) -> None:
        self.files -= 1
        if self.files < 0:
            raise BrokenReport("JUnit data parsing failed: the reports of the pipeline are too many files")


async def read_reports(
    services: Services,
    actor: Actor | Anonymous,
    reports: Sequence[StoredReport],
    render: Callable[[Sequence[JobSuite]], dict[str, Any]],
) -> str:
    """Return the result of `render` for the reports of a pipeline, as JSON. Raise `TooBusy`."""
    readers, settings = services[READERS], services.settings
    key = (render, settings.test_cases_limit, settings.test_report_limit, *reports)
    if (packed := readers.cache.get(key)) is not None:
        return await asyncio.to_thread(_unpacked, packed)
    async with readers.slots.slot(*counted_for(actor)):
        suites = await _suites(services, reports)
        packed = await asyncio.to_thread(lambda: zlib.compress(orjson.dumps(render(suites)), level=1))
    if len(packed) <= readers.cache.maxsize:
        readers.cache[key] = packed
    return await asyncio.to_thread(_unpacked, packed)


def _unpacked(packed: bytes) -> str:
    return zlib.decompress(packed).decode()


async def _suites(services: Services, reports: Sequence[StoredReport]) -> Sequence[JobSuite]:
    settings = services.settings
    limit = settings.test_cases_limit
    budget = _Budget(settings.test_report_limit, _MAX_FILES, junit.Budget(limit, _ELEMENTS_OF_A_CASE * limit))
    suites = []
    for stored in reports:
        of_matrix = stored.parallel and stored.name.endswith("]")  # each is a suite of its own
        suite = Suite(stored.name if of_matrix else suite_name(stored.name))
        try:
            data = await _bytes_of(services, stored, budget)
            await asyncio.to_thread(_read_report, data, suite, budget, limit)
        except BrokenReport as problem:
            suite.error = str(problem)
        except FileNotFoundError:  # deleted a moment ago
            continue
        suites.append(JobSuite(stored.job_id, suite))
    return suites


async def _bytes_of(services: Services, stored: StoredReport, budget: _Budget) -> bytes:
    """Return the report as it was uploaded. Its decompressed size counts towards the limit, but its
    compressed size must fit as well."""
    attrs.evolve(budget).take(stored.size)
    objects = services.objects
    return b"".join([chunk async for chunk in objects.read(stored.object_key, 0, stored.size)])


def _read_report(data: bytes, suite: Suite, budget: _Budget, limit: int) -> None:
    try:
        for chunks in junit.report_files(data, budget.take):
            budget.take_file()
            junit.read_junit(chunks, suite, budget.xml)
    except junit.TooManyCases:
        problem_text = f"number of test cases exceeded the limit of {limit}"
        raise BrokenReport(f"JUnit data parsing failed: {problem_text}") from None
    except junit.UNPACKING_ERRORS as problem:
        raise BrokenReport(f"JUnit data parsing failed: {problem}") from None


def suite_name(job: str) -> str:
    """Return the name of a job without the numbering that distinguishes jobs that belong together."""
    return str(_NUMBERING.sub("", job)).strip()


routes = Routes()


@attrs.frozen(kw_only=True)
class ReportsOfPipeline:
    id: str
    pipeline_id: int


@routes.get(
    "/projects/{id}/pipelines/{pipeline_id}/test_report",
    access=project(feature="builds"),
    answers="200 TestReport",
)
async def show_report(
    services: Services, actor: Actor | Anonymous, params: ReportsOfPipeline, project: Project
) -> web.Response:
    """Show the test report of a pipeline with all test cases."""
    return await _answer(services, actor, params, project, junit.report)


@routes.get(
    "/projects/{id}/pipelines/{pipeline_id}/test_report_summary",
    access=project(feature="builds"),
    answers="200 TestReportSummary",
)
async def show_summary(
    services: Services, actor: Actor | Anonymous, params: ReportsOfPipeline, project: Project
) -> web.Response:
    """Show the numbers of test cases of a pipeline."""
    return await _answer(services, actor, params, project, junit.summary)


async def _answer(
    services: Services,
    actor: Actor | Anonymous,
    params: ReportsOfPipeline,
    project: Project,
    render: Callable[[Sequence[JobSuite]], dict[str, Any]],
) -> web.Response:
    pipeline = await find_pipeline(services, project, params.pipeline_id)
    reports = await artifact_queries.reports_of(services.database, pipeline.id)
    return json_text(await read_reports(services, actor, reports, render))
