"""No descriptor is closed twice: between the two another thread may have opened something of the same number."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STRACE = shutil.which("strace")
A_GIT = """
from api_server.git.processes import run

async def main():
    await run(["hash-object", "--stdin"], stdin=b"x")
"""
A_PUSH_THAT_WAITS = """
import os
from api_server.git.receive_pack import push_gate

async def main():
    with push_gate() as gate:
        os.write(gate.childs_ends[0], b"/q\\n")
        gate.let_go()
        await gate.question()
        await gate.accept()
"""
RUN = """
import asyncio, {module}
with asyncio.Runner(loop_factory={module}.new_event_loop) as runner:
    runner.run(main())
"""


@pytest.mark.parametrize("module", ["asyncio", "uvloop"])
@pytest.mark.parametrize("program", [A_GIT, A_PUSH_THAT_WAITS], ids=["git", "gate"])
def test_no_descriptor_is_closed_twice(program: str, module: str, tmp_path: Path) -> None:
    if STRACE is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    code = program + RUN.format(module=module)
    command = [STRACE, "-e", "trace=close", "-o", str(trace), sys.executable, "-c", code]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    closed = trace.read_text()
    assert "close(" in closed
    assert "EBADF" not in closed
