"""The answers to errors, and log lines about requests."""

import asyncio
import io
import json
import logging
import os
import re
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import attrs
import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.typedefs import Handler, Middleware
from pytest_aiohttp import AiohttpServer
from yarl import URL

from api_server.state import database
from api_server.state.database import connect
from api_server.state.errors import LockNotAvailable
from api_server.web import errors
from api_server.web.errors import api_errors, plain_errors
from common import logs
from tests.api_server.code.lfs.client import LfsClient, named
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Forge
from tests.support.git_client import Git, git_url
from tests.support.logs import lines_of_this_test, log_as_written
from tests.support.outages import Way, forge_on_the_way
from tests.support.runner import Runner, RunningJob, a_runner
from tests.support.waiting import until, until_somebody_waits

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("path", ["/nothing", "/projects/a/b", "/projects/1/nothing", "/users/1/2/3/4"])
async def test_an_unknown_route_is_404(forge: Forge, path: str) -> None:
    for client in (forge.root, forge.anonymous):
        answer = await client.get(path)
        assert (answer.status, answer.body) == (404, {"error": "404 Not Found"})


@pytest.mark.parametrize("method", ["DELETE", "TRACE"])
async def test_a_wrong_method_is_405_and_told_what_is_allowed(forge: Forge, method: str) -> None:
    answer = await forge.root.request(method, "/user")
    assert (answer.status, answer.body) == (405, {"error": "405 Not Allowed"})
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS"


async def test_a_body_that_is_too_large_is_413(forge: Forge) -> None:
    for headers in (JSON, {"Content-Type": "application/x-www-form-urlencoded"}):
        large = io.BytesIO(b" " * (11 * 2**20))
        answer = await forge.root.post("/users", data=large, headers=headers)
        assert (answer.status, answer.body) == (413, {"error": "413 Request Entity Too Large"})


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"a": ', "the body is not valid JSON"),
        (b"\xff", "the body is not valid JSON"),
        (b"[" * 9_000, "the body is not valid JSON"),
        (b"[" * 100_000, "Too many total parameters"),
        (b'{"name": "a\\u0000b", "path": "a"}', "name is invalid"),
        (b'{"name": "\\ud800", "path": "a"}', "the body is not valid JSON"),
        (b'{"name": "a", "path": "a", "parent_id": 9223372036854775808}', "parent_id is invalid"),
        (b'{"name": "a", "path": "a", "parent_id": 1e2}', "parent_id is invalid"),
        (b'{"name": ["a"], "path": {"a": 1}}', "name is invalid, path is invalid"),
        (b"", "name is missing, path is missing"),
        (b"{}", "name is missing, path is missing"),
    ],
)
async def test_a_body_that_cannot_be_read_is_400(forge: Forge, body: bytes, error: str) -> None:
    answer = await forge.root.post("/groups", data=body, headers=JSON)
    assert (answer.status, answer.body) == (400, {"error": error})


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("search=%ff", "parameters are not valid UTF-8"),
        ("search=a%00b", "search is invalid"),
        ("page=9223372036854775808", "page is invalid"),
        ("page=99999999999999999999999", "page is invalid"),
        ("page=1.5&per_page=x", "page is invalid, per_page is invalid"),
        ("page=0&per_page=-1", "page does not have a valid value, per_page does not have a valid value"),
        ("owned=maybe", "owned is invalid"),
        ("visibility=secret", "visibility does not have a valid value"),
        ("sort=up", "sort does not have a valid value"),
        ("order_by=colour", "order_by does not have a valid value"),
        ("pagination=keyset&cursor=x", "cursor is invalid"),
        ("&".join(f"a{n}=1" for n in range(1001)), "more than 1000 parameters"),
    ],
)
async def test_a_query_that_cannot_be_read_is_400(forge: Forge, query: str, error: str) -> None:
    answer = await forge.root.get(f"/projects?{query}")
    assert (answer.status, answer.body) == (400, {"error": error})


@pytest.mark.parametrize("reference", ["-1", "9223372036854775807", "a%2Fb", "%F0%9F%98%80"])
async def test_an_id_that_is_nobodys_is_not_found(forge: Forge, reference: str) -> None:
    answer = await forge.root.get(f"/projects/{reference}")
    assert (answer.status, answer.body) == (404, {"message": "404 Project Not Found"})


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("projects/%00", "id is invalid"),
        ("projects/%ff", "parameters are not valid UTF-8"),
        ("projects/9223372036854775808", "id is invalid"),
        ("projects/-9223372036854775809", "id is invalid"),
        (f"groups/{'9' * 5000}", "id is invalid"),
        (f"namespaces/-{'9' * 20}", "id is invalid"),
        (f"users/{'9' * 25}/projects", "id is invalid"),
        ("projects/{id}/remote_mirrors/9223372036854775808", "mirror_id is invalid"),
        ("projects/{id}/jobs/9223372036854775808", "job_id is invalid"),
        ("projects/{id}/repository/branches/%ff", "parameters are not valid UTF-8"),
        ("projects/{id}/repository/files/a%2F%c3.txt?ref=main", "parameters are not valid UTF-8"),
        ("projects/{id}/variables/%25%ff", "parameters are not valid UTF-8"),
    ],
)
async def test_a_path_whose_parameters_cannot_be_is_400(forge: Forge, path: str, error: str) -> None:
    """Decision D11."""
    project = await forge.project()
    url = URL(f"{forge.base}/api/v4/{path.format(id=project['id'])}", encoded=True)
    async with forge.session.get(url, headers={"PRIVATE-TOKEN": forge.root.token}) as answer:
        assert (answer.status, await answer.json()) == (400, {"error": error})


async def test_an_address_that_is_no_text_is_400(forge: Forge) -> None:
    project = await forge.project()
    for method in ("PUT", "DELETE"):
        url = URL(f"{forge.base}/api/v4/projects/{project['id']}/invitations/%ff@example.org", encoded=True)
        async with forge.session.request(method, url, headers={"PRIVATE-TOKEN": forge.root.token}) as answer:
            assert (answer.status, await answer.json()) == (
                400,
                {"error": "parameters are not valid UTF-8"},
            )


async def test_an_empty_body_that_says_it_is_json_is_no_error(forge: Forge) -> None:
    """python-gitlab sends such requests."""
    alice = await forge.user("alice")
    project = await forge.project(alice)
    answer = await alice.api.post(f"/projects/{project['id']}/archive", data=b"", headers=JSON)
    assert answer.status == 201
    answer = await alice.api.delete(f"/projects/{project['id']}", data=b"{}", headers=JSON)
    assert (answer.status, answer.body) == (202, {"message": "202 Accepted"})


async def test_query_form_and_json_are_merged_and_the_path_wins(forge: Forge) -> None:
    group = await forge.group()
    path = f"/groups/{group['id']}?description=query&name=query&id=999"
    answer = await forge.root.put(path, data=json.dumps({"name": "json", "id": 998}), headers=JSON)
    assert (answer.status, answer.body["name"], answer.body["description"]) == (200, "json", "query")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = await forge.root.put(path, data="name=form", headers=form)
    assert (answer.body["name"], answer.body["id"]) == ("form", group["id"])


async def test_a_whole_number_beyond_64_bits_is_text_of_all_its_digits(forge: Forge) -> None:
    project = f"/projects/{(await forge.project())['id']}"
    for digits in (str(2**63), str(2**64 - 1), str(2**64), str(-(2**63) - 1), "1" * 300):
        sent = f'{{"description": {digits}, "others": [0.5, 1e300]}}'
        answer = await forge.root.put(project, data=sent, headers=JSON)
        assert (answer.status, answer.body["description"]) == (200, digits)
        refused = await forge.root.put(project, data=f'{{"build_timeout": {digits}}}', headers=JSON)
        assert (refused.status, refused.body) == (400, {"error": "build_timeout is invalid"})


async def test_an_unexpected_failure_is_500_with_the_request_id_of_the_log(
    forge: Forge, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "api_server.accounts.instance_handlers.json_value", _raising(RuntimeError("of the inside"))
    )
    answer = await forge.root.get("/version", headers={"X-Request-Id": "given-by-the-client"})
    assert (answer.status, answer.body) == (500, {"message": "500 Internal Server Error"})
    assert answer.headers["X-Request-Id"] == "given-by-the-client"
    logged = capfd.readouterr().out
    failure = logged.index("unexpected failure")
    assert "given-by-the-client" in logged[failure : failure + 200]
    assert "RuntimeError: of the inside" in logged


async def test_a_row_that_somebody_else_holds_is_409(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    """python-gitlab tries again if the reason phrase says so."""
    monkeypatch.setattr("api_server.accounts.instance_handlers.json_value", _raising(LockNotAvailable()))
    url = f"{forge.base}/api/v4/version"
    async with forge.session.get(url, headers={"PRIVATE-TOKEN": forge.root.token or ""}) as answer:
        assert (answer.status, answer.reason) == (409, "Conflict: Resource lock")
        assert await answer.json() == {"message": "409 Conflict: Resource lock"}


@pytest.mark.parametrize("length", [None, "4000"])
async def test_a_failure_in_the_middle_of_an_answer_cuts_the_connection(
    aiohttp_server: AiohttpServer, length: str | None
) -> None:
    """The first answer's body must neither contain a second answer nor look complete."""

    async def fail(request: web.Request) -> NoReturn:
        response = web.StreamResponse(headers={"Content-Length": length} if length else {})
        await response.prepare(request)
        await response.write(b"beginning")
        raise RuntimeError("of the inside")

    app = web.Application(middlewares=[api_errors])
    app.router.add_get("/", fail)
    server = await aiohttp_server(app)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")
    received = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert received.startswith(b"HTTP/1.1 200 OK")
    assert received.endswith(b"beginning" if length else b"9\r\nbeginning\r\n")


@pytest.mark.parametrize("middleware", [api_errors, plain_errors])
async def test_a_client_that_leaves_in_the_middle_of_an_answer_is_no_failure(middleware: Middleware) -> None:
    """A client that ends a download causes no traceback."""
    asked: asyncio.Queue[web.Request] = asyncio.Queue()
    over = asyncio.Event()

    @web.middleware
    async def outermost(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        finally:
            over.set()

    async def endless(request: web.Request) -> NoReturn:
        response = web.StreamResponse()
        await response.prepare(request)
        asked.put_nowait(request)
        while True:
            await response.write(bytes(2**20))

    app = web.Application(middlewares=[outermost, middleware])
    app.router.add_get("/", endless)
    runner = web.AppRunner(app)  # it lets handlers run on, as the service does
    await runner.setup()
    try:
        with lines_of_this_test() as logged:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            _, writer = await asyncio.open_connection(*runner.addresses[0])
            writer.write(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")
            request = await asyncio.wait_for(asked.get(), 20)
            await until(lambda: request.protocol.writing_paused)
            plug = writer.get_extra_info("socket")
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            await asyncio.wait_for(over.wait(), 20)
        assert logged == []
    finally:
        await runner.cleanup()


def _raising(problem: Exception) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise problem

    return fail


REASONS = {
    400: "Bad Request", 401: "Unauthorized", 402: "Payment Required", 403: "Forbidden", 404: "Not Found",
    406: "Not Acceptable", 407: "Proxy Authentication Required", 408: "Request Timeout", 409: "Conflict",
    410: "Gone", 411: "Length Required", 412: "Precondition Failed", 413: "Request Entity Too Large",
    414: "Request-URI Too Long", 415: "Unsupported Media Type", 416: "Requested Range Not Satisfiable",
    417: "Expectation Failed", 421: "Misdirected Request", 422: "Unprocessable Entity", 424: "Failed Dependency",
    426: "Upgrade Required", 428: "Precondition Required", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 501: "Not Implemented",
    502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout", 505: "HTTP Version Not Supported",
    506: "Variant Also Negotiates", 507: "Insufficient Storage", 510: "Not Extended",
    511: "Network Authentication Required",
}  # fmt: skip
REFUSALS = {
    kind.status_code: kind
    for parent in (web.HTTPClientError, web.HTTPServerError)
    for kind in parent.__subclasses__()
    if kind not in (web.HTTPMethodNotAllowed, web.HTTPUnavailableForLegalReasons)
}


@pytest.fixture(scope="module")
async def refusing() -> AsyncIterator[TestClient[Any, Any]]:
    """A server that answers `/<status>` and `/api/<status>` with aiohttp's exception for it, and fails unexpectedly at
    `/fails`."""

    async def refuse(request: web.Request) -> web.Response:
        status = int(request.match_info["status"])
        raise REFUSALS[status](0, 0) if status == 413 else REFUSALS[status]()

    async def refuse_in_own_words(_request: web.Request) -> web.Response:
        raise web.HTTPRequestRangeNotSatisfiable(reason="Gone Too Far", text="too far")

    async def fail(_request: web.Request) -> web.Response:
        raise RuntimeError("of the inside")

    app = web.Application(middlewares=[plain_errors])
    api = web.Application(middlewares=[api_errors])
    for part in (app, api):
        part.add_routes([web.get(r"/{status:\d+}", refuse), web.get("/fails", fail)])
    app.add_routes([web.get("/own", refuse_in_own_words)])
    app.add_subapp("/api", api)
    async with TestClient(TestServer(app)) as client:
        yield client


def test_all_refusals_of_aiohttp_are_known() -> None:
    assert REFUSALS.keys() == REASONS.keys()


@pytest.mark.parametrize(("status", "reason"), REASONS.items())
async def test_each_refusal(refusing: TestClient[Any, Any], status: int, reason: str) -> None:
    plain = f"{status}: {reason}" if status != 413 else "Maximum request body size 0 exceeded."
    async with refusing.get(f"/{status}") as answer:
        assert (answer.status, answer.reason, await answer.text()) == (status, reason, plain)
    async with refusing.get(f"/api/{status}") as answer:
        assert (answer.status, answer.reason) == (status, reason)
        assert await answer.json() == {"error": f"{status} {reason}"}


async def test_what_nobody_foresaw(refusing: TestClient[Any, Any], capfd: pytest.CaptureFixture[str]) -> None:
    async with refusing.get("/fails") as answer:
        assert (answer.status, await answer.text()) == (500, "500: Internal Server Error")
    async with refusing.get("/api/fails") as answer:
        assert (answer.status, await answer.json()) == (500, {"message": "500 Internal Server Error"})
    assert capfd.readouterr().out.count("RuntimeError: of the inside") == 2


async def test_words_that_a_handler_has_chosen_stay(refusing: TestClient[Any, Any]) -> None:
    async with refusing.get("/own") as answer:
        assert (answer.status, answer.reason, await answer.text()) == (416, "Gone Too Far", "too far")


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "reason", "text"),
    [
        ("DELETE", "/-/liveness", {}, 405, "Method Not Allowed", "405: Method Not Allowed"),
        (
            "GET",
            "/-/liveness",
            {"Expect": "more"},
            417,
            "Expectation Failed",
            '{"error": "417 Expectation Failed"}',
        ),
        ("GET", "/api/v4/nothing", {}, 404, "Not Found", '{"error":"404 Not Found"}'),
        ("DELETE", "/api/v4/user", {}, 405, "Method Not Allowed", '{"error":"405 Not Allowed"}'),
        (
            "GET",
            "/api/v4/user",
            {"Expect": "more"},
            417,
            "Expectation Failed",
            '{"error": "417 Expectation Failed"}',
        ),
    ],
)
async def test_refusals_of_the_router(
    forge: Forge, method: str, path: str, sent: dict[str, str], status: int, reason: str, text: str
) -> None:
    async with forge.session.request(method, f"{forge.base}{path}", headers=sent) as answer:
        assert (answer.status, answer.reason, await answer.text()) == (status, reason, text)


async def test_a_body_that_is_too_large(forge: Forge) -> None:
    sent = {"PRIVATE-TOKEN": forge.root.token or "", "Content-Type": "application/json"}
    large = io.BytesIO(b" " * (11 * 2**20))
    async with forge.session.post(f"{forge.base}/api/v4/users", data=large, headers=sent) as answer:
        assert (answer.status, answer.reason) == (413, "Request Entity Too Large")
        assert await answer.text() == '{"error":"413 Request Entity Too Large"}'


async def test_a_resource_that_cannot_be_saved(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    url = f"{forge.base}/api/v4/projects/{project['id']}/merge_requests"
    wanted = {"source_branch": "main", "target_branch": "main", "title": "Nothing"}
    sent = {"PRIVATE-TOKEN": alice.token}
    async with forge.session.post(url, json=wanted, headers=sent) as answer:
        assert (answer.status, answer.reason) == (422, "Unprocessable Entity")


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
#: The entry points that belong neither to the API, nor to LFS, nor to the pages.
OTHERS = ("fetch", "upload-pack", "push", "raw", "archive")


@attrs.frozen
class Place:
    """A server with a project, and a job of it that a runner has taken."""

    forge: Forge
    way: Way
    project: CiProject
    runner: Runner
    job: RunningJob
    lfs: LfsClient
    #: The URL of the database, without the proxy.
    url: str

    async def ways_in(self) -> dict[str, tuple[int, str | None, Any]]:
        """Return status, `Retry-After` and body of one request each."""
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
        assert (head, "Service unavailable" in page) == ([503, "5"], True), how
        assert answers == {name: (503, "5", PLAIN if name in OTHERS else API) for name in answers}, how
        assert (await place.forge.anonymous.get(f"{place.forge.base}/-/readiness")).status == 503, how
        assert "Traceback" not in capfd.readouterr().out, how
        assert not [record for record in caplog.records if record.exc_info], how
        place.way.give_back()
        assert (await place.project.api.get(place.project.url)).status == 200, how
        assert (await place.job.append(b"more", len(b"more") * times)).status == 202, how
        await until(lambda: (len(pool._used), pool._capacity._value) == (0, 3))  # none is lost for good


async def test_a_line_a_second_tells_of_it(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    place.way.take("refused")
    errors.often._states.clear()  # messages of other tests
    began = time.monotonic()
    for _ in range(10):
        await asyncio.gather(*(place.project.api.get(place.project.url) for _ in range(20)))
    seconds = time.monotonic() - began
    lines = re.findall(r"^\[error +\] the database is unavailable .*", capfd.readouterr().out, re.MULTILINE)
    assert 1 <= len(lines) <= 1 + seconds
    assert "cause=" in lines[0]


async def test_a_push_that_loses_the_database_is_refused_in_gits_words(place: Place, tmp_path: Path) -> None:
    """Its objects have arrived, and no ref has been moved yet."""
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
