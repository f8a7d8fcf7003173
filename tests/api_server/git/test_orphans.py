"""What becomes of git children whose parent is killed."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc here")

# A git whose own child does not end by itself: neither by a closed pipe, nor (with "stubborn") by SIGTERM.
PARENT = """
import asyncio, sys
from api_server.git import processes, spawning

async def main():
    spawning.GRACE_SECONDS = 0.2
    trap = "trap '' TERM;" if sys.argv[1] == "stubborn" else ""
    hang = f"!{trap} echo $$; exec sleep 60"
    async with processes.start(["hang"], configuration=[("alias.hang", hang)]) as child:
        print(child.pid, (await child.read_until(b"\\n")).decode(), flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["obedient", "stubborn"])
async def test_git_and_what_it_has_started_end_when_their_parent_is_killed(kind: str) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, kind, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert parent.stdout is not None
    line = await asyncio.wait_for(parent.stdout.readline(), 20)
    pids = [int(pid) for pid in line.split()]
    assert len(pids) == 2
    assert all(map(runs, pids))
    parent.kill()
    await parent.wait()
    try:
        await until(lambda: not any(map(runs, pids)))
    finally:
        for pid in filter(runs, pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def runs(pid: int) -> bool:
    """Whether the process is there, and more than an entry in the table that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False
