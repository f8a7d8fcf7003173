"""The plug-in with a server that somebody else has started."""

import asyncio
import re
from pathlib import Path

from tests.support.forge import ROOT_TOKEN, Forge

from .sessions import ended, session


async def test_a_server_that_runs_already(forge: Forge, tmp_path: Path) -> None:
    with session(
        tmp_path, "by_hand", f"--forgelet-url={forge.base}", FORGELET_ROOT_TOKEN=ROOT_TOKEN
    ) as running:
        status, output = await asyncio.to_thread(ended, running)
    outcomes = dict(re.findall(r"::(test_\w+)\S* (\w+)", output))
    assert outcomes == {
        "test_users_and_projects": "PASSED",
        "test_controls": "PASSED",
        "test_what_is_left_of_failures_of_a_server_that_is_gone": "PASSED",
        "test_its_version": "PASSED",
        "test_another_version": "SKIPPED",
        "test_a_tier": "SKIPPED",
    }, output
    assert status == 0
