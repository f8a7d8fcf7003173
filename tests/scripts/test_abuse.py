"""The attacks of `scripts/abuse/run`, in short."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from scripts.abuse.attacks import ATTACKS
from scripts.abuse.environment import Sizes, running_environment
from scripts.abuse.inputs import delta_bomb
from scripts.abuse.scenario import AttackOutcome, ClientStats, measure_quiet, run_attack
from scripts.harness.processes import PeakUsage, Usage

SHORT = ("large-files", "silent-fetches")


def outcome(**changed: object) -> AttackOutcome:
    """One in which all was well, but for what is changed."""
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
    """Not how fast anybody is answered: a busy machine would decide that."""
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
