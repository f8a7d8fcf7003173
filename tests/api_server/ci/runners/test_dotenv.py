"""Dotenv reports: artifacts that give variables to later jobs."""

import contextlib

from hypothesis import given
from hypothesis import strategies as some

from api_server.ci.runners import uploads
from tests.support.ci import CiProject
from tests.support.runner import Runner, RunningJob


async def test_dotenv_variables_reach_later_jobs(project: CiProject, runner: Runner) -> None:
    await project.pipeline(
        "stages: [one, two]\nbuild: {stage: one, script: 'true'}\ntest: {stage: two, script: 'true'}"
    )
    job = await runner.job()
    report = b'# made by build\nVERSION=1.2.3\nQUOTED="two words"\nCI_NODE_TOTAL=weak\n'
    assert (await job.upload(report, ".env", artifact_type="dotenv", artifact_format="raw")).status == 201
    await job.finish()
    variables = (await runner.job()).variables
    assert (variables["VERSION"], variables["QUOTED"]) == ("1.2.3", "two words")


async def test_a_broken_dotenv_report_is_400(job: RunningJob) -> None:
    of_no_index = "".join(map(str, range(1000))).encode()  # does not shrink enough for one
    for content, text in (
        (b"no line", "Invalid Format"),
        (b"A=" + b"x" * 6000, "Dotenv Artifact Too Big"),
        (b"K" + of_no_index + b"=1", "Key is too long (maximum is 255 characters)"),
    ):
        answer = await job.upload(content, ".env", artifact_type="dotenv", artifact_format="raw")
        assert answer.status == 400
        assert text in answer.body["message"]


@given(
    some.dictionaries(
        some.from_regex(r"[A-Z_][A-Z0-9_]*", fullmatch=True),
        some.from_regex(r"[!#-&(-~]*", fullmatch=True),
        max_size=9,
    )
)
def test_dotenv_reads_what_was_written(variables: dict[str, str]) -> None:
    text = "".join(f"{key}={value}\n" for key, value in variables.items())
    assert uploads.parse_dotenv(text.encode()) == variables


@given(some.binary(max_size=200))
def test_dotenv_never_fails_otherwise_than_by_refusal(content: bytes) -> None:
    with contextlib.suppress(uploads.InvalidDotenv):
        assert len(uploads.parse_dotenv(content)) <= uploads.MAX_DOTENV_VARIABLES
