"""One server for all workers of pytest-xdist: nobody sees another's data, and it goes with the last who holds it."""

import asyncio
import json
import re
import subprocess
from pathlib import Path

from tests.support.waiting import until

from .sessions import ended, is_gone, session

WORKERS = ("-p", "xdist", "-n", "2", "--dist", "each")


async def test_a_shared_server_ends_with_the_last_worker(tmp_path: Path) -> None:
    waiting = [tmp_path / f"waits-gw{number}" for number in range(2)]
    (tmp_path / "pytest.ini").write_text("[pytest]\nforgelet_options = --no-edge\n")
    with session(tmp_path, "two_workers", *WORKERS, "--forgelet-shared") as running:
        output = await asyncio.to_thread(_heard, running, r"PASSED .*::test_no_reset_by_hand", 2)
        await until(lambda: all(map(Path.exists, waiting)) or running.poll() is not None, seconds=150)
        running.kill()
    assert all(map(Path.exists, waiting)), output
    assert len(re.findall(r"PASSED .*::test_all_that", output)) == 16, output
    assert len(re.findall(r"PASSED .*::test_a_server_of_its_kind.*\[free-16.11\]", output)) == 4, output
    assert len(re.findall(r"ERROR .*::test_no_reset\[free-16.11\]", output)) == 2, output
    (told,) = {path.read_text() for path in waiting}
    pid, data_dir = json.loads(told)
    await until(lambda: is_gone(pid) and not Path(data_dir).exists(), seconds=60)


def _heard(process: "subprocess.Popen[str]", pattern: str, times: int) -> str:
    """What it writes, until `pattern` was in that many lines: workers are ahead of what is written about them."""
    assert process.stdout is not None
    output = ""
    while times:
        line = process.stdout.readline()
        assert line, output
        output += line
        times -= re.search(pattern, line) is not None
    return output


def test_reset_of_what_is_shared_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nforgelet_isolation = reset\nforgelet_shared = true\n")
    with session(tmp_path, "two_workers", *WORKERS) as running:
        status, output = ended(running)
    assert status == 4
    assert "ERROR: forgelet: isolation by reset wants a server of one's own" in output
