"""The inputs of `scripts/abuse/run --growing`, in short: the processor's time decides, not the clock."""

import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from scripts.abuse.environment import AttackTarget, session
from scripts.abuse.inputs import INPUTS
from scripts.abuse.scenario import GROWS, LEAST_SECONDS, Cost, Growth
from storage_edge.settings import Settings
from tests.storage_edge.conftest import Clock, EdgeServer
from tests.support.forge import Forge

#: The parts of the largest input that are sent.
SHARES = (8, 2)
TIMES = 3


@pytest.fixture(scope="module")
async def place(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AttackTarget]:
    """The tests' server and an edge before it, with the two projects that attacks need."""
    bob = await forge.user("bob")
    public = await forge.project(visibility="public", initialize_with_readme=True)
    mine = await forge.project(bob, visibility="public", initialize_with_readme=True)
    settings = Settings(
        port=0, origin=forge.base, data_dir=tmp_path_factory.mktemp("edge"), origin_check_interval=0.0
    )
    async with EdgeServer(settings, Clock()) as edge:
        yield AttackTarget(
            api_url=forge.base,
            edge_url=str(edge.make_url("")).rstrip("/"),
            attacker=bob.token,
            public=public["path_with_namespace"],
            mine=mine["path_with_namespace"],
            large_change="",
        )


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with session() as http:
        yield http


@pytest.mark.parametrize("name", INPUTS)
async def test_no_input_costs_more_than_its_bytes(
    place: AttackTarget, http: aiohttp.ClientSession, name: str
) -> None:
    """No step of the event loop is long either: the watchdog of all tests sees to that."""
    given, costs = INPUTS[name], []
    for share in SHARES:
        tried = []
        for _ in range(TIMES):
            request = await given.make(place, http, given.largest // share)
            began = time.process_time()
            status = await request.send(http)
            tried.append(time.process_time() - began)
            assert status < "500", status
        costs.append((request.size, min(tried)))
    (small, first), (large, last) = costs
    assert last <= max(LEAST_SECONDS, GROWS * first * large / small), costs


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, []),
        ({"cpu": 0.081}, ["grows faster than its bytes"]),
        ({"step": 0.051}, ["step"]),
        ({"memory": 101 * 2**20}, ["memory"]),
    ],
)
def test_each_aim_of_an_input_can_be_missed(changed: dict[str, float], missed: list[str]) -> None:
    first = Cost(size=1_000, cpu=0.01, step=0.01, memory=0, status="400")
    last = {"size": 4_000, "cpu": 0.08, "step": 0.05, "memory": 100 * 2**20, "status": "400"} | changed
    growth = Growth("input", [first, first, Cost(**last)])  # type: ignore[arg-type]
    assert growth.misses == missed
    assert ("MISSED" in str(growth)) is bool(missed)
