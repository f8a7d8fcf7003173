"""pytest as a client's author runs it: a process of its own, in a folder of hers, with the plug-in."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.checkout import CHECKOUT

SECONDS = 120
TESTS = Path(__file__).parent / "of_clients"


@contextlib.contextmanager
def session(
    folder: Path, tests: str, *arguments: str, **environment: str
) -> Iterator["subprocess.Popen[str]"]:
    """Runs a module of `of_clients/` in `folder`. No plug-in loads itself there: what is wanted is named."""
    shutil.copy(TESTS / f"{tests}.py", folder / f"test_{tests}.py")
    with (folder / "pytest.ini").open("a") as config:
        if config.tell() == 0:
            config.write("[pytest]\n")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("FORGELET_", "PYTEST_"))}
    process = subprocess.Popen(
        [
            sys.executable, "-P", "-m", "pytest", "-p", "forgelet.pytest", "-p", "no:cacheprovider", "-v",
            "--strict-markers", "-W", "error", "--basetemp", str(folder / "temporary"), *arguments,
        ],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(CHECKOUT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Exit status, and all that it wrote."""
    output, _ = process.communicate(timeout=SECONDS)
    return process.returncode, output


def is_gone(pid: int) -> bool:
    """Whether there is no such process any more."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
