"""Texts of the router and the middleware, which are ours whatever Python says (decision D2)."""

import io
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from api_server.web.errors import api_errors, plain_errors
from tests.support.forge import Forge

REASONS = {
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    406: "Not Acceptable",
    407: "Proxy Authentication Required",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    411: "Length Required",
    412: "Precondition Failed",
    413: "Request Entity Too Large",
    414: "Request-URI Too Long",
    415: "Unsupported Media Type",
    416: "Requested Range Not Satisfiable",
    417: "Expectation Failed",
    421: "Misdirected Request",
    422: "Unprocessable Entity",
    424: "Failed Dependency",
    426: "Upgrade Required",
    428: "Precondition Required",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
    506: "Variant Also Negotiates",
    507: "Insufficient Storage",
    510: "Not Extended",
    511: "Network Authentication Required",
}
REFUSALS = {
    kind.status_code: kind
    for parent in (web.HTTPClientError, web.HTTPServerError)
    for kind in parent.__subclasses__()
    if kind not in (web.HTTPMethodNotAllowed, web.HTTPUnavailableForLegalReasons)
}


@pytest.fixture(scope="module")
async def refusing() -> AsyncIterator[TestClient[Any, Any]]:
    """Answers `/<status>` and `/api/<status>` with what aiohttp raises for it, `/fails` with what nobody foresaw."""

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
