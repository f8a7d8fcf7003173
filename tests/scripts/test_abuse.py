"""The attacks of `scripts/abuse/run`, in short."""

import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scripts.abuse.attacks import ATTACKS
from scripts.abuse.environment import AttackTarget, Sizes, running_environment, session
from scripts.abuse.inputs import INPUTS, delta_bomb
from scripts.abuse.scenario import (
    GROWS,
    LEAST_SECONDS,
    AttackOutcome,
    ClientStats,
    Cost,
    Growth,
    measure_quiet,
    run_attack,
)
from scripts.harness.processes import PeakUsage, Usage
from storage_edge.settings import Settings
from tests.storage_edge.conftest import Clock, EdgeServer
from tests.support.forge import Forge

SHORT = ("large-files", "silent-fetches")


def outcome(**changed: object) -> AttackOutcome:
    """Return a good outcome, except for the given changes."""
    held = (Usage(children=0, descriptors=20), Usage(children=0, descriptors=20))
    well = {
        "name": "attack",
        "answers": Counter({"200": 3}),
        "quiet": ClientStats([0.010] * 200),
        "client": ClientStats([0.049] * 200),
        "api": PeakUsage(memory=299 * 2**20),
        "edge": PeakUsage(),
        "before": held,
        "after": held,
    }
    return AttackOutcome(**{**well, **changed})  # type: ignore[arg-type]


def test_what_was_well_misses_nothing() -> None:
    assert outcome().misses == []


def test_a_quiet_client_is_taken_for_one_that_waits_once_for_a_processor() -> None:
    """If all share two processors, five times a very short time means nothing."""
    quiet = ClientStats([0.003] * 200)
    assert outcome(quiet=quiet, client=ClientStats([0.049] * 200)).misses == []
    assert outcome(quiet=quiet, client=ClientStats([0.051] * 200)).misses == ["slow"]
    slow = ClientStats([0.020] * 200)
    assert outcome(quiet=slow, client=ClientStats([0.099] * 200)).misses == []
    assert outcome(quiet=slow, client=ClientStats([0.101] * 200)).misses == ["slow"]


def test_what_a_tier_may_keep_is_not_left_behind() -> None:
    kept = Usage(0, 20, memory=160 * 2**20, cached=64 * 2**20)
    assert outcome(after=(Usage(0, 20), kept)).misses == []
    assert "0+96" in str(outcome(after=(Usage(0, 20), kept)))
    more = Usage(0, 20, memory=165 * 2**20, cached=64 * 2**20)
    assert outcome(after=(Usage(0, 20), more)).misses == ["memory left"]


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({"client": ClientStats([0.01] * 100 + [0.051] * 3)}, "slow"),
        ({"client": ClientStats([0.01] * 100, failed=1)}, "failures"),
        ({"api": PeakUsage(memory=301 * 2**20)}, "memory"),
        ({"after": (Usage(0, 20), Usage(0, 20, memory=101 * 2**20))}, "memory left"),
        ({"after": (Usage(1, 20), Usage(0, 20))}, "children"),
        ({"after": (Usage(0, 20), Usage(0, 25))}, "descriptors"),
        ({"answers": Counter[str]()}, "no attack"),
    ],
)
def test_each_aim_can_be_missed(changed: dict[str, object], missed: str) -> None:
    assert outcome(**changed).misses == [missed]
    assert f"MISSED {missed}" in str(outcome(**changed))


def test_the_delta_bomb_is_a_pack_that_git_would_unpack(tmp_path: Path) -> None:
    bomb = delta_bomb(copies=2)
    assert len(delta_bomb()) < 20_000
    subprocess.run(["git", "init", "--quiet", "--bare", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", "unpack-objects", "-q"], cwd=tmp_path, input=bomb, check=True)
    listed = subprocess.run(
        ["git", "cat-file", "--batch-all-objects", "--batch-check=%(objectsize)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(map(int, listed.stdout.split())) == [0xFFFFFF, 2 * 0xFFFFFF]


def test_attacks_are_made_and_leave_nothing() -> None:
    """The speed of answers is not checked, because it depends on the load of the machine."""
    assert set(SHORT) <= set(ATTACKS)
    sizes = Sizes(large=30 * 2**20, medium=2**20, changed_files=20)
    with running_environment(lambda _: None, sizes) as environment:
        quiet = measure_quiet(environment, 1)
        assert quiet.failed == 0
        before = environment.usage()
        for name in SHORT:
            result = run_attack(name, environment, 1, quiet, before)
            assert set(result.misses) <= {"slow"}, str(result)
            assert 0 < result.api.step < 1
            assert all(held.memory > 2**20 for held in result.after)


#: The divisors of the largest input's size.
SHARES = (8, 2)
TIMES = 3


@pytest.fixture(scope="module")
async def place(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AttackTarget]:
    """The tests' server and an edge in front of it, with the two projects that attacks need."""
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
    """No step of the event loop is long either, which the watchdog of all tests checks."""
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
        ({"status": "431"}, ["head refused unread"]),
    ],
)
def test_each_aim_of_an_input_can_be_missed(changed: dict[str, Any], missed: list[str]) -> None:
    first = Cost(size=1_000, cpu=0.01, step=0.01, memory=0, status="400")
    last = {"size": 4_000, "cpu": 0.08, "step": 0.05, "memory": 100 * 2**20, "status": "400"} | changed
    growth = Growth("input", [first, first, Cost(**last)])  # type: ignore[arg-type]
    assert growth.misses == missed
    assert ("MISSED" in str(growth)) is bool(missed)
