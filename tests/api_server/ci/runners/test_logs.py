"""Logs: they grow piece by piece, can be read at any time, hide secrets, and contain the coverage."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import gitlab
import pytest
from hypothesis import given
from hypothesis import strategies as some

from api_server.ci.jobs import logs
from api_server.ci.jobs.logs import MAX_SECRETS, Logs, coverage_of, last_figure, logs_of, mask
from api_server.expressions import compile_expression
from api_server.web.context import SERVICES
from tests.support.ci import CiProject, ci_project
from tests.support.folders import files_below
from tests.support.forge import Forge
from tests.support.runner import Runner, RunningJob, a_runner
from tests.support.waiting import until


def log_of(project: CiProject, job: RunningJob) -> str:
    return f"{project.url}/jobs/{job.id}/trace"


async def seal(forge: Forge, job_id: int) -> None:
    await logs.seal(logs_of(forge.server.app[SERVICES]), job_id)


async def test_an_append_is_acknowledged_with_the_size(project: CiProject, job: RunningJob) -> None:
    answer = await job.append(b"one\n", 0)
    assert (answer.status, answer.headers["Range"], answer.headers["Job-Status"]) == (202, "0-4", "running")
    assert (
        answer.headers["X-GitLab-Trace-Update-Interval"]
        == answer.headers["X-Service-Trace-Update-Interval"]
        == "60"
    )
    assert (await job.append(b"two\n", 4)).headers["Range"] == "0-8"
    assert (await project.api.get(log_of(project, job))).body == "one\ntwo\n"


@pytest.mark.parametrize("start", [0, 2, 5, 9])
async def test_what_does_not_begin_at_the_end_is_416_with_the_size(job: RunningJob, start: int) -> None:
    await job.log(b"one\n")
    answer = await job.append(b"twenty\n", start)
    assert (answer.status, answer.headers["Range"]) == (416, "0-4")
    assert answer.body == {"message": "416 Range Not Satisfiable"}


async def test_a_first_piece_begins_at_0(job: RunningJob) -> None:
    answer = await job.append(b"x", 3)
    assert (answer.status, answer.headers["Range"]) == (416, "0-0")


async def test_a_piece_whose_answer_was_lost_may_come_again(project: CiProject, job: RunningJob) -> None:
    await job.log(b"one\n")
    await job.append(b"two\n", 4)
    assert (await job.append(b"two\n", 4)).headers["Range"] == "0-8"
    assert (await project.api.get(log_of(project, job))).body == "one\ntwo\n"


@pytest.mark.parametrize("content_range", ["0-0", "0-1", "0--1", "0-99", "bytes 0-1/5", "0-2/2"])
async def test_of_content_range_the_start_counts(job: RunningJob, content_range: str) -> None:
    answer = await job.append(b"ab", 0, headers={"Content-Range": content_range})
    assert (answer.status, answer.headers["Range"]) == (202, "0-2")


@pytest.mark.parametrize("content_range", ["", "a-b", "-5"])
async def test_without_a_start_it_is_400(job: RunningJob, content_range: str) -> None:
    answer = await job.append(b"ab", 0, headers={"Content-Range": content_range})
    assert (answer.status, answer.body) == (400, {"message": "400 Missing header Content-Range"})


async def test_an_empty_piece_changes_nothing(project: CiProject, job: RunningJob) -> None:
    assert (await job.append(b"", 0)).status == 202
    assert (await project.api.get(log_of(project, job))).status == 404
    await job.log(b"one\n")
    answer = await job.append(b"", 4)
    assert (answer.status, answer.headers["Range"]) == (202, "0-4")


async def test_two_appends_for_one_place_store_one(project: CiProject, job: RunningJob) -> None:
    answers = await asyncio.gather(*(job.append(b"%d" % n * 5, 0) for n in range(8)))
    assert sorted(answer.status for answer in answers).count(416) < 8
    log = (await project.api.get(log_of(project, job))).body
    assert len(log) == 5
    assert len(set(log)) == 1


async def test_wrong_tokens_are_403_and_unknown_jobs_too(job: RunningJob) -> None:
    for headers in ({"JOB-TOKEN": "fljob-wrong"}, {"JOB-TOKEN": ""}):
        answer = await job.append(b"x", 0, headers=headers)
        assert (answer.status, answer.body) == (403, {"message": "403 Forbidden"})
    unknown = RunningJob(job.client, job.payload | {"id": 2**40})
    assert (await unknown.append(b"x", 0)).status == 403


async def test_a_canceled_job_tells_its_runner_so(project: CiProject, job: RunningJob) -> None:
    await job.log(b"one\n")
    assert (await project.api.post(f"{project.url}/jobs/{job.id}/cancel")).status == 201
    answer = await job.append(b"two\n", 4)
    assert (answer.status, answer.headers["Job-Status"]) == (403, "canceled")
    assert answer.body == {"message": "403 Forbidden - Job is not running"}


async def test_a_log_over_the_limit_fails_the_job(forge: Forge) -> None:
    with forge.changed_settings(log_limit=10):
        project = await ci_project(forge)
        runner = await a_runner(forge, project_id=project.id)
        await project.pipeline()
        job = await runner.job()
        await job.log(b"0123456789")
        answer = await job.append(b"x", 10)
        assert (answer.status, answer.headers["Job-Status"]) == (403, "failed")
        shown = (await project.api.get(f"{project.url}/jobs/{job.id}")).body
        assert (shown["status"], shown["failure_reason"]) == ("failed", "trace_size_exceeded")


async def test_the_jobs_token_is_hidden_also_between_pieces(
    forge: Forge, project: CiProject, job: RunningJob
) -> None:
    secret = job.token.encode()
    text = b"echo " + secret + b" and " + secret + b"\n"
    for cut in (8, len(secret) + 20):
        text_size = len(text)
        size = int((await job.append(b"", 0)).headers["Range"][2:])
        await job.append(text[:cut], size)
        visible = (await project.api.get(log_of(project, job))).body
        assert secret[:3].decode() not in visible
        await job.append(text[cut:], size + cut)
        assert text_size
    hidden = "x" * len(secret)
    expected = f"echo {hidden} and {hidden}\n" * 2
    assert (await project.api.get(log_of(project, job))).body == expected


async def test_what_only_looked_like_a_secret_is_shown_in_the_end(
    forge: Forge, project: CiProject, job: RunningJob
) -> None:
    await job.log(b"the end is fljob-")
    assert (await project.api.get(log_of(project, job))).body == "the end is "
    await job.finish()
    await seal(forge, job.id)
    assert (await project.api.get(log_of(project, job))).body == "the end is fljob-"


async def test_ranges_of_a_growing_and_of_a_finished_log(
    forge: Forge, project: CiProject, job: RunningJob
) -> None:
    """Decision D4: a log answers Range with 206 and 416."""
    await job.log(b"0123456789")
    await job.append(b"abcdeg", 10)

    async def check() -> None:
        url = log_of(project, job)
        part = await project.api.get(url, headers={"Range": "bytes=8-11"})
        assert (part.status, part.body, part.headers["Content-Range"]) == (206, "89ab", "bytes 8-11/16")
        assert (await project.api.get(url, headers={"Range": "bytes=-3"})).body == "deg"
        behind = await project.api.get(url, headers={"Range": "bytes=16-"})
        assert (behind.status, behind.headers["Content-Range"]) == (416, "bytes */16")
        whole = await project.api.get(url)
        assert (whole.status, whole.body) == (200, "0123456789abcdeg")
        assert whole.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert whole.headers["Content-Disposition"] == f'infile; filename="{job.id}.log"'
        tag = whole.headers["ETag"]
        assert (await project.api.get(url, headers={"If-None-Match": tag})).status == 304
        part = await project.api.get(url, headers={"Range": "bytes=0-1", "If-Range": '"another"'}, expect=200)
        head = await project.api.request("HEAD", url)
        assert (head.status, head.body, head.headers["Content-Length"]) == (200, "", "16")

    await check()
    await job.finish()
    await seal(forge, job.id)
    assert (
        await forge.database.value("SELECT count(*) FROM job_log_chunks WHERE job_id = %(id)s", id=job.id)
        == 0
    )
    await check()


async def test_a_job_without_a_log_is_404(project: CiProject, job: RunningJob) -> None:
    """Decision D4: the document's 404 instead of GitLab's empty 200."""
    answer = await project.api.get(log_of(project, job))
    assert (answer.status, answer.body) == (404, {"message": "404 Not Found"})


async def test_who_may_read_a_log(forge: Forge, project: CiProject, job: RunningJob) -> None:
    await job.log(b"one\n")
    people = await forge.people(project.id)
    statuses = {name: (await person.api.get(log_of(project, job))).status for name, person in people.items()}
    assert statuses == {
        "stranger": 404, "guest": 200, "reporter": 200, "developer": 200, "maintainer": 200, "owner": 200,
    }  # fmt: skip
    assert (await forge.anonymous.get(log_of(project, job))).status == 401
    await forge.root.put(project.url, {"public_jobs": False})
    assert (await people["guest"].api.get(log_of(project, job))).status == 403


async def test_a_debug_trace_is_for_developers(forge: Forge, project: CiProject, runner: Runner) -> None:
    await project.pipeline("build: {script: 'true', variables: {CI_DEBUG_TRACE: 'true'}}")
    job = await runner.job()
    await job.log(b"+ secrets\n")
    people = await forge.people(project.id)
    assert (await people["reporter"].api.get(log_of(project, job))).status == 403
    assert (await people["developer"].api.get(log_of(project, job))).status == 200


async def test_a_watched_log_is_sent_more_often(project: CiProject, job: RunningJob) -> None:
    await job.log(b"one\n")
    await project.api.get(log_of(project, job))
    assert (await job.append(b"two\n", 4)).headers["X-GitLab-Trace-Update-Interval"] == "3"


async def test_coverage_is_read_from_the_log(forge: Forge, project: CiProject, runner: Runner) -> None:
    await project.pipeline("build: {script: 'true', coverage: '/TOTAL.*? (\\d+(?:\\.\\d+)?)%/'}")
    job = await runner.job()
    await job.log(b"TOTAL 10%\nTOTAL 97.")
    await job.append(b"5%\nbye\n", 19)
    await job.finish()

    async def coverage() -> float | None:
        return (await project.api.get(f"{project.url}/jobs/{job.id}")).body["coverage"]

    assert await until(coverage) == 97.5


async def test_sealing_twice_and_erasing_leave_nothing_behind(
    forge: Forge, project: CiProject, job: RunningJob
) -> None:
    await job.log(b"one\n")
    await seal(forge, job.id)  # too early: nothing happens
    assert (await job.append(b"two\n", 4)).status == 202
    await job.finish()
    await asyncio.gather(seal(forge, job.id), seal(forge, job.id))
    assert (await project.api.get(log_of(project, job))).body == "one\ntwo\n"
    folder = forge.settings.data_dir / "objects" / "projects" / str(project.id)

    await until(lambda: len(files_below(folder)) == 1, seconds=30)
    assert (await forge.root.post(f"{project.url}/jobs/{job.id}/erase")).status == 201
    assert (await project.api.get(log_of(project, job))).status == 404
    refused = await job.append(b"one\n", 0)
    assert (refused.status, refused.body) == (403, {"message": "403 Forbidden - Job has been erased!"})

    await until(lambda: not files_below(folder), seconds=30)


async def test_deleting_a_project_deletes_its_bytes(
    forge: Forge, project: CiProject, job: RunningJob
) -> None:
    await job.log(b"one\n")
    await job.finish()
    await seal(forge, job.id)
    folder = forge.settings.data_dir / "objects" / "projects" / str(project.id)
    assert list(folder.rglob("*"))
    assert (await forge.root.delete(project.url)).status == 202

    await until(lambda: not folder.exists(), seconds=30)


async def test_python_gitlab_streams_a_log(forge: Forge, project: CiProject, job: RunningJob) -> None:
    text = b"".join(b"%d: \x00\xff\xc3\xa9 any bytes\r\n" % number for number in range(5000))
    await job.log(text)
    client = gitlab.Gitlab(forge.base, private_token=project.developer.token)

    def read() -> bytes:
        pieces: list[bytes] = []
        found = client.projects.get(project.id).jobs.get(job.id)
        found.trace(streamed=True, action=pieces.append, chunk_size=1000)
        return b"".join(pieces)

    assert await asyncio.to_thread(read) == text


async def test_the_store_forgets_nothing_it_should_keep(forge: Forge) -> None:
    """Objects are deleted by key; a prefix is a folder, not the beginning of a name."""
    objects = forge.server.app[SERVICES].objects

    async def one():
        yield b"x"

    for key in ("projects/777/jobs/1/a", "projects/7770/jobs/1/a"):
        await objects.put(key, one())
    await objects.delete_below("projects/777")
    assert [piece async for piece in objects.read("projects/7770/jobs/1/a", 0, 1)] == [b"x"]
    with pytest.raises(FileNotFoundError):
        [piece async for piece in objects.read("projects/777/jobs/1/a", 0, 1)]
    await objects.delete(["projects/7770/jobs/1/a", "projects/7770/jobs/1/a"])


letters = some.binary(max_size=12).map(lambda text: bytes(97 + byte % 3 for byte in text))


@given(some.lists(letters, max_size=8), some.lists(letters, max_size=3))
def test_the_result_does_not_depend_on_where_the_log_is_cut(
    pieces: list[bytes], secrets: list[bytes]
) -> None:
    stored, held = b"", b""
    for piece in pieces:
        done, held = mask(held + piece, secrets)
        stored += done
    whole, rest = mask(b"".join(pieces), secrets)
    assert (stored, held) == (whole, rest)


@given(letters, some.lists(letters, max_size=3))
def test_offsets_stay_and_no_secret_is_left(text: bytes, secrets: list[bytes]) -> None:
    done, held = mask(text, secrets)
    assert len(done) + len(held) == len(text)
    assert text.endswith(held)
    assert not any(secret in done for secret in secrets if secret)
    assert not held or any(secret.startswith(held) and secret != held for secret in secrets)


def test_a_secret_becomes_as_many_x() -> None:
    assert mask(b"token=s3cret!\n", [b"s3cret"]) == (b"token=xxxxxx!\n", b"")


def test_an_end_that_may_be_a_beginning_is_held_back() -> None:
    assert mask(b"token=s3c", [b"s3cret"]) == (b"token=", b"s3c")


def test_without_secrets_nothing_is_held() -> None:
    assert mask(b"abc", []) == (b"abc", b"")


def test_a_piece_full_of_secrets_is_masked() -> None:
    stored, held = mask(b"s3cret12 " * 29_000, [b"s3cret12", b"k" * 2000])
    assert (stored, held) == (b"xxxxxxxx " * 29_000, b"")


def test_of_two_secrets_that_begin_in_one_place_the_longest_is_hidden() -> None:
    assert mask(b"abcdef", [b"abc", b"abcde", b"bcdef"]) == (b"xxxxxf", b"")


@pytest.mark.parametrize(
    "secrets",
    [
        [b"bbbbbbbb", b"a" * 9_990 + b"00000000"],
        [b"bbbbbbbb", b"fljob-cccccccc", b"a" * 60_000 + b"00000000"],
        [b"a" * 9_990 + b"%08d" % number for number in range(13)],
        [b"a" * MAX_SECRETS],
        [b"%08d" % number for number in range(MAX_SECRETS // 8)],
    ],
    ids=["two", "three", "thirteen", "one as long as all", "many"],
)
@pytest.mark.parametrize("text", [b"a" * 2**17, b"a" * (2**17 - 1) + b"b", b"12345678" * 2**14])
def test_the_hardest_logs_and_secrets_take_milliseconds(text: bytes, secrets: list[bytes]) -> None:
    began = time.thread_time()
    done, held = mask(text, secrets)
    # in processor time; a twentieth of this is usual, and it once took minutes
    assert time.thread_time() - began < 0.1
    assert len(done) + len(held) == len(text)
    assert not any(secret in done for secret in secrets)


def test_an_end_that_would_take_long_to_compare_is_held_back_until_more_has_come() -> None:
    secret = b"a" * 9_990 + b"0"
    text = b"a" * 20_000 + b"b"
    done, held = mask(text, [secret])
    assert done + held == text
    assert 0 < len(held) < len(secret)
    more = b"done\n" * 2_000
    assert mask(held + more, [secret]) == (held + more, b"")


class OneLog:
    """A log that is read in pieces, as `Logs` does."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.read_bytes = 0

    async def read(self, _job_id: int, start: int, end: int) -> AsyncIterator[bytes]:
        self.read_bytes += end - start
        middle = (start + end) // 2
        yield self.text[start:middle]
        yield self.text[middle:end]


async def coverage(text: bytes, expression: str) -> float | None:
    return await coverage_of(cast("Logs", OneLog(text)), 1, len(text), expression)


@pytest.mark.parametrize(
    ("text", "expression", "expected"),
    [
        ("TOTAL 10%\nTOTAL 97.5%\nbye\n", r"TOTAL.*? (\d+(?:\.\d+)?)%", 97.5),
        ("TOTAL 10%\nTOTAL 97.5%", r"TOTAL.*? (\d+(?:\.\d+)?)%", 97.5),
        ("a 1 of 2\n", r"\d", 2.0),
        ("Covered 97.5 %, 3 files", r"Covered.*%", 97.5),
        ("a 1\na -\n", r"a (\d)?", 1.0),
        ("12\n", r"\d*", 12.0),
        ("é 5\n", r"^.. ?(\d)", 5.0),
        ("no figure\n", r"figure", None),
        ("1\n", r"TOTAL", None),
        ("", r"\d", None),
        ("5\n" + "9" * 400 + "\n", r"\d+", 5.0),
        ("9" * 400, r"\d+", None),
        ("5%", "(", None),
        ("5%", r"\pL{400}", None),
        ("x" * 5_000 + " 5%\n", r"x (\d)%$", 5.0),
        ("5% " + "x" * 5_000 + "\n", r"\d%", None),
    ],
)
async def test_the_last_figure_is_taken(text: str, expression: str, expected: float | None) -> None:
    assert await coverage(text.encode(), expression) == expected


async def test_bytes_that_are_no_text_are_any_character() -> None:
    assert await coverage(b"TOTAL \xff\xfe 5%\n", r"TOTAL .* (\d)%") == 5.0


@pytest.mark.parametrize("before", [0, 1, 2**18 - 9, 2**18 - 1, 2**18, 600_000])
async def test_lines_are_whole_wherever_the_log_is_cut(before: int) -> None:
    text = b"." * 300_000 + b"\nTOTAL 97.5%\n" + b"." * before
    assert await coverage(text, r"^TOTAL (\S+)%$") == 97.5
    assert await coverage(b"x" + b"1" * before + b"\n2", r"^1+$") is None


async def test_no_more_than_the_end_of_a_log_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_COVERAGE_BYTES", 2**20)
    log = OneLog(b"5%" + b"\n" * 1_100_000)
    assert await coverage_of(cast("Logs", log), 1, len(log.text), r"\d%") is None
    assert log.read_bytes == 2**20
    log = OneLog(b"\n" * 1_100_000 + b"5%")
    assert await coverage_of(cast("Logs", log), 1, len(log.text), r"\d%") == 5.0
    assert log.read_bytes == 2**18


@pytest.mark.parametrize(
    ("line", "expression"),
    [
        (b"1" * 128 * 1024, r"\d"),
        (b"1" * 4_000, r"\d|.*x"),
        (b"9" * 400, r"\d+"),
        (b"1", r"x\d"),
        (b"1" + b"a" * 4_000, "|".join(f"a{{{number}}}x" for number in range(1, 60))),
    ],
)
async def test_the_hardest_logs_take_a_bounded_time(
    line: bytes, expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_COVERAGE_SECONDS", 0.1)
    text = (line + b"\n") * (300_000 // len(line))
    began = time.process_time()
    found: Any = await coverage(text, expression)
    assert time.process_time() - began < 1  # in processor time, on the slowest machines
    assert found in (None, 1.0)


def test_a_figure_is_of_the_first_group() -> None:
    assert last_figure(b"1 2 3", compile_expression(r"(\d) (\d) (\d)")) == 1.0
