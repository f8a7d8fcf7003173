"""The log of requests and its secrets, and answers while something is away."""

import asyncio
import io
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import structlog

from api_server.state import database
from api_server.state.database import connect
from api_server.web import errors
from common import logs
from tests.api_server.code.lfs.client import LfsClient, named
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Forge
from tests.support.git_client import Git, git_url
from tests.support.logs import log_as_written
from tests.support.outages import Way, forge_on_the_way
from tests.support.runner import Runner, RunningJob, a_runner
from tests.support.waiting import until, until_somebody_waits


@pytest.fixture
def log() -> Iterator[io.BytesIO]:
    with log_as_written() as written:
        yield written


async def test_tokens_and_passwords_are_in_no_log_line(
    forge: Forge, log: io.BytesIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await forge.user("alice")
    token, strange = alice.token, "a-token-of-another-kind-0123456789"
    plain = forge.anonymous
    sent = [
        await plain.get("/user", headers={"PRIVATE-TOKEN": token}),
        await plain.get("/user", headers={"Authorization": f"Bearer {token}"}),
        await plain.get(f"/user?private_token={token}&a=b"),
        await plain.get(f"/user?private_token={strange}"),
        await plain.get(f"/user?a=1&job_token={strange}&b=2"),
        await plain.post("/projects", {"private_token": token, "name": ""}),
        await plain.post("/projects", data=f"private_token={strange}"),
        await plain.get(f"/nothing?access_token={strange}"),
        await plain.get(f"/projects/flsin-1-2-{strange}"),
        await plain.get(f"/projects/{token}", headers={"PRIVATE-TOKEN": token}),
        await forge.root.post("/users", {"password": strange, "email": "x"}),
        await forge.root.post(f"/projects/1/variables?key=KEY&value={strange}"),
        await forge.root.post(
            f"/projects/1/pipeline?ref=main&variables[][key]=A&variables[][value]={strange}"
        ),
        await forge.root.post(
            f"/projects/1/jobs/1/play?job_variables_attributes%5B0%5D%5Bvalue%5D={strange}"
        ),
        await plain.post(f"/projects/1/trigger/pipeline?ref=main&token={strange}&variables[A]={strange}"),
        await plain.post(
            f"/projects/1/ref/main/trigger/pipeline?token=flptt-{strange}&variables%5BA%5D={strange}"
        ),
    ]
    monkeypatch.setattr("api_server.accounts.instance_handlers.json_value", lambda *_: 1 / 0)
    sent.append(await plain.get(f"/version?private_token={token}"))
    lines = log.getvalue().decode()
    assert lines.count('"event":"request"') >= len(sent)
    assert "ZeroDivisionError" in lines
    assert token not in lines
    assert strange not in lines


@pytest.mark.parametrize(
    "head",
    [
        b"GET /api/v4/user HTTP/1.1\r\nHost: x\r\nPRIVATE-TOKEN: hunter2\x00\r\n\r\n",
        b"GET /api/v4/user?private_token=hunter2 \xff HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_a_malformed_head_is_refused_and_not_logged(forge: Forge, log: io.BytesIO, head: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", forge.settings.port)
    writer.write(head)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert b" 400 Bad Request\r\n" in answer
    assert b"hunter2" not in log.getvalue()
    assert b"Traceback" not in log.getvalue()


async def test_a_request_is_answered_where_its_line_cannot_be_written(forge: Forge) -> None:
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with open("/dev/full", "w") as full, open(os.devnull, "w") as nothing:  # noqa: PTH123
        logs.configure("json", stream=full)
        structlog.configure(cache_logger_on_first_use=False)
        try:
            answers = [await forge.anonymous.get(path) for path in ("/version", "/user", "/nothing")]
        finally:
            structlog.configure(**before)
            root.handlers[:] = handlers
            root.setLevel(level)
            os.dup2(nothing.fileno(), full.fileno())
    assert [answer.status for answer in answers] == [401, 401, 404]


API = {"message": "503 Service Unavailable"}
PLAIN = "503: Service Unavailable"
#: The ways in that are not the API's, nor LFS's, nor the pages'.
OTHERS = ("fetch", "upload-pack", "push", "raw", "archive")


@attrs.frozen
class Place:
    """A server with a project, and a job of it in a runner's hands."""

    forge: Forge
    way: Way
    project: CiProject
    runner: Runner
    job: RunningJob
    lfs: LfsClient
    #: Of the database, not through the proxy.
    url: str

    async def ways_in(self) -> dict[str, tuple[int, str | None, Any]]:
        """Status, `Retry-After` and body of one request each."""
        project, base, name = self.project, self.forge.base, self.project.path
        token = {"token": self.runner.token}
        requests = {
            "read": project.api.get(project.url),
            "write": project.api.post("/projects", {"name": "x"}),
            "page": self.forge.anonymous.get(f"{base}/-/emails/1/token"),
            "fetch": self.forge.anonymous.get(f"{base}/{name}.git/info/refs?service=git-upload-pack"),
            "upload-pack": self.forge.anonymous.post(f"{base}/{name}.git/git-upload-pack", data=b"0000"),
            "push": self.forge.anonymous.get(f"{base}/{name}.git/info/refs?service=git-receive-pack"),
            "raw": self.forge.anonymous.get(f"{base}/{name}/-/raw/main/README.md"),
            "archive": self.forge.anonymous.get(f"{base}/{name}/-/archive/main/x.zip"),
            "lfs": self.lfs.batch("download", named(b"x")),
            "lfs upload": self.lfs.request("PUT", f"/objects/{'0' * 64}/1", data=b"x"),
            "job request": self.forge.anonymous.post("/jobs/request", token | {"last_update": "1"}),
            "trace": self.job.append(b"more", 0),
            "artifacts": self.forge.anonymous.request(
                "POST", f"/jobs/{self.job.id}/artifacts", data=b"x", headers={"JOB-TOKEN": self.job.token}
            ),
            "job update": self.job.update("success"),
        }
        answers = await asyncio.gather(*requests.values())
        return {
            name: (answer.status, answer.headers.get("Retry-After"), answer.body)
            for name, answer in zip(requests, answers, strict=True)
        }


@pytest.fixture
async def place(
    new_database: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    monkeypatch.setattr(database, "TIMEOUT", 2.0)
    url = new_database()
    async with forge_on_the_way(url, tmp_path / "data") as (forge, way):
        project = await ci_project(forge, visibility="public")
        await project.job()
        runner = await a_runner(forge, project_id=project.id)
        job = await runner.job()
        lfs = LfsClient(forge, project.path, project.developer.token)
        yield Place(forge, way, project, runner, job, lfs, url)


async def test_every_way_in_says_503_until_the_database_is_back(
    place: Place, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    pool = place.forge.database._connections
    for times, how in enumerate(("refused", "cut", "garbage", "silent")):
        await place.forge.database.ping()
        place.way.take(how)
        answers = await place.ways_in()
        *head, page = answers.pop("page")
        assert (head, "The service is busy or not complete at the moment" in page) == ([503, "5"], True), how
        assert answers == {name: (503, "5", PLAIN if name in OTHERS else API) for name in answers}, how
        assert (await place.forge.anonymous.get(f"{place.forge.base}/-/readiness")).status == 503, how
        assert "Traceback" not in capfd.readouterr().out, how
        assert not [record for record in caplog.records if record.exc_info], how
        place.way.give_back()
        assert (await place.project.api.get(place.project.url)).status == 200, how
        assert (await place.job.append(b"more", len(b"more") * times)).status == 202, how
        await until(lambda: (len(pool._used), pool._room._value) == (0, 3))  # none is lost for good


async def test_a_line_a_second_tells_of_it(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    place.way.take("refused")
    errors.often._said.clear()  # what other tests have said
    began = time.monotonic()
    for _ in range(10):
        await asyncio.gather(*(place.project.api.get(place.project.url) for _ in range(20)))
    seconds = time.monotonic() - began
    lines = re.findall(r"^\[error +\] the database is unavailable .*", capfd.readouterr().out, re.MULTILINE)
    assert 1 <= len(lines) <= 1 + seconds
    assert "cause=" in lines[0]


async def test_a_push_that_loses_the_database_is_refused_in_gits_words(place: Place, tmp_path: Path) -> None:
    """When its objects have arrived, and nothing has moved yet."""
    git, url = Git(tmp_path / "work"), git_url(place.forge, place.project.path, place.project.developer)
    await git.init("late")
    await git.commit_files({"late": "late"})
    async with connect(place.url, base_url="http://x") as beside, beside.transaction() as holder:
        await holder.run("LOCK TABLE pushes")
        pushing = asyncio.create_task(git.run("push", url, "late"))
        await until_somebody_waits(beside)
        place.way.take("refused")
        ran = await pushing
    assert ran.code == 1
    assert "remote: The server could not judge the push, try again in a minute." in ran.output
    assert "! [remote rejected] late -> late (pre-receive hook declined)" in ran.output
    assert not [*tmp_path.rglob("tmp_objdir*")], "what has arrived is gone"
    place.way.give_back()
    branch = await place.project.api.get(f"{place.project.url}/repository/branches/late")
    assert (branch.status, branch.body) == (404, {"message": "404 Branch Not Found"})
    await git("push", url, "late")
