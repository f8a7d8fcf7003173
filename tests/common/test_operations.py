"""Readiness and metrics are for operators, on either process alike."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from common import operations
from common.client_settings import ClientSettings
from common.lifecycle import SHUTDOWN, Check, Degraded, Shutdown
from tests.support.ports import free_port
from tests.support.wire import running

CLOSED = ("/-/readiness", "/-/metrics")
PATHS = ("/-/liveness", *CLOSED)
NOWHERE = {"operations_networks": ["192.0.2.0/24"]}


@pytest.fixture(params=["api", "edge"])
def process(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def statuses(process: str, new_database: Callable[[], str], tmp_path: Path) -> Callable[..., Any]:
    """What a process answers to requests with each of these headers on all paths, by port; the edge is not ready, since
    it has no origin."""

    async def ask(settings: dict[str, Any], *requests: dict[str, str]) -> dict[int, list[int]]:
        async with (
            running(process, new_database, tmp_path, **settings) as server,
            aiohttp.ClientSession() as session,
        ):
            answers: dict[int, list[int]] = {}
            for port in filter(None, (server.port, settings.get("operations_port"))):
                for headers, path in itertools.product(requests or [{}], PATHS):
                    async with session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as answer:
                        answers.setdefault(port, []).append(answer.status)
            return answers

    return ask


#: Settings -> what requests say of themselves, and whether they get what is closed to others.
ADDRESSES: list[tuple[dict[str, Any], list[tuple[dict[str, str], bool]]]] = [
    (
        {},
        [
            ({}, True),
            # Behind a proxy that nobody trusts: whoever it speaks for is not this machine.
            ({"X-Forwarded-For": "127.0.0.1"}, False),
            ({"Forwarded": "for=127.0.0.1"}, False),
        ],
    ),
    (NOWHERE, [({}, False)]),
    ({"operations_networks": ["127.0.0.1"]}, [({}, True)]),
    (
        {"trusted_proxies": ["127.0.0.1"]},
        [
            ({"X-Forwarded-For": "203.0.113.5"}, False),
            ({"X-Forwarded-For": "10.1.2.3"}, True),
            ({"X-Forwarded-For": "10.1.2.3, 203.0.113.5"}, False),
        ],
    ),
    ({"trusted_proxies": ["127.0.0.1"], **NOWHERE}, [({"X-Forwarded-For": "192.0.2.9"}, True)]),
]


@pytest.mark.parametrize(("settings", "requests"), ADDRESSES)
async def test_they_are_for_certain_addresses(
    statuses: Callable[..., Any],
    process: str,
    settings: dict[str, Any],
    requests: list[tuple[dict[str, str], bool]],
) -> None:
    ready = 200 if process == "api" else 503
    (answers,) = (await statuses(settings, *(headers for headers, _ in requests))).values()
    assert answers == [
        status for _, is_open in requests for status in ([200, ready, 200] if is_open else [200, 404, 404])
    ]


async def test_with_a_port_of_their_own_the_public_one_has_liveness_only(
    statuses: Callable[..., Any], process: str
) -> None:
    ready = 200 if process == "api" else 503
    public, own = (await statuses({"operations_port": free_port()})).values()
    assert public == [200, 404, 404]
    assert own == [200, ready, 200]


async def test_the_networks_count_on_that_port_too(statuses: Callable[..., Any]) -> None:
    _, own = (await statuses({"operations_port": free_port()} | NOWHERE)).values()
    assert own == [200, 404, 404]


class _Broken(Exception):
    pass


@pytest.mark.parametrize(
    ("problems", "code", "status"),
    [
        ({}, 200, "ok"),
        ({"a": None}, 200, "ok"),
        ({"a": Degraded("The shelf is full."), "b": None}, 200, "degraded"),
        (
            {"a": Degraded("The shelf is full."), "b": _Broken("postgresql://me:secret@db")},
            503,
            "failed",
        ),
    ],
)
async def test_readiness_is_the_worst_of_its_checks(
    problems: dict[str, Exception | None], code: int, status: str
) -> None:
    def check(problem: Exception | None) -> Check:
        async def run() -> None:
            if problem is not None:
                raise problem

        return run

    shown = {
        "a": {"status": "degraded", "message": "The shelf is full."},
        "b": {"status": "failed", "message": "_Broken"},
    }
    app = web.Application()
    app[SHUTDOWN] = Shutdown()
    checks = {name: check(problem) for name, problem in problems.items()}
    operations.setup(app, ClientSettings(), CollectorRegistry(), checks)
    async with TestClient(TestServer(app)) as client, client.get("/-/readiness") as answer:
        assert answer.status == code
        assert await answer.json() == {
            "status": status,
            **{name: shown[name] if problem else {"status": "ok"} for name, problem in problems.items()},
            "event_loop": {"status": "ok"},
        }
