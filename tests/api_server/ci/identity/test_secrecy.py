"""An identity token is a secret of its job: no log, table or error shows it."""

import io
from collections.abc import Iterator
from typing import Any

import pytest
from joserfc import jwt

from api_server.ci.jobs.logs import mask
from tests.support.ci import CiProject
from tests.support.forge import Forge
from tests.support.logs import log_as_written
from tests.support.runner import RunningJob, a_runner

FILE = "test: {script: x, id_tokens: {ONE: {aud: one}, TWO: {aud: [two, three]}}}"
BEFORE, AFTER = b"the token is ", b" that is it\n"


async def running(project: CiProject) -> RunningJob:
    runner = await a_runner(project.forge, project_id=project.id)
    await project.pipeline(FILE)
    return await runner.job()


async def test_logs_do_not_show_it_wherever_they_are_cut(forge: Forge, project: CiProject) -> None:
    job = await running(project)
    tokens = [job.variables[name].encode() for name in ("ONE", "TWO")]
    written = b"".join(BEFORE + token + AFTER for token in tokens)
    hidden = b"".join(BEFORE + b"x" * len(token) + AFTER for token in tokens)
    for cut in range(len(BEFORE), len(written)):
        first, held = mask(written[:cut], tokens)
        second, rest = mask(held + written[cut:], tokens)
        assert first + second + rest == hidden

    size = 0
    for cut in (1, len(tokens[0]) // 2, len(tokens[0]) - 1):
        text = BEFORE + tokens[0] + AFTER
        await job.append(text[: len(BEFORE) + cut], size)
        await job.append(text[len(BEFORE) + cut :], size + len(BEFORE) + cut)
        size += len(text)
    log = await project.api.get(f"{project.url}/jobs/{job.id}/trace")
    assert log.body.encode() == (BEFORE + b"x" * len(tokens[0]) + AFTER) * 3


TABLES = """
    SELECT format('%%I.%%I', table_schema, table_name) AS name FROM information_schema.tables
    WHERE table_schema = 'public' AND table_type = 'BASE TABLE'
"""


async def test_no_table_and_no_answer_has_it_in_clear(forge: Forge, project: CiProject) -> None:
    job = await running(project)
    token = job.variables["ONE"]
    await job.log(f"{token}\n".encode())
    for form in (token, token.rpartition(".")[2], token.encode().hex()):
        for table in await forge.database.rows(TABLES):
            found = await forge.database.value(
                f"SELECT count(*) FROM {table.name} t WHERE strpos(t::text, %(form)s) > 0", form=form
            )
            assert found == 0, table.name
    for path in (f"/jobs/{job.id}", f"/jobs/{job.id}/trace"):
        assert token not in str((await forge.root.get(f"{project.url}{path}", expect=200)).body)


@pytest.fixture
def log() -> Iterator[io.BytesIO]:
    with log_as_written() as written:
        yield written


async def test_no_line_of_the_services_log_has_it(
    forge: Forge, project: CiProject, log: io.BytesIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await running(project)
    token = job.variables["ONE"]
    for headers in ({"JOB-TOKEN": token}, {"Authorization": f"Bearer {token}"}, {"PRIVATE-TOKEN": token}):
        await forge.anonymous.get(f"/job?job_token={token}", headers=headers, expect=401)
    signed: list[str] = []
    sign = jwt.encode

    def failing(*arguments: Any, **named: Any) -> Any:
        signed.append(sign(*arguments, **named))
        raise RuntimeError

    monkeypatch.setattr(jwt, "encode", failing)
    runner = await a_runner(forge, project_id=project.id)
    await project.pipeline(FILE)
    assert (await runner.poll()).status == 204
    lines = log.getvalue().decode()
    assert "a job cannot be handed out" in lines
    assert len(signed) == 1
    for told in (token, signed[0]):
        assert told not in lines
        assert told.rpartition(".")[2] not in lines
