"""What looks at the API's description from outside, in an environment of its own.

It is made by the first test that needs it, of the extra `openapi` of pyproject.toml, beside the environment that
`scripts/test` has made. Where that is another one, FORGELET_OPENAPI_PYTHON names its Python, or the tests are skipped.
"""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.checkout import CHECKOUT

#: Of tests that need it: the first one has to wait for the installation.
INSTALLS = pytest.mark.timeout(900)
#: Clients that have been generated, by the digest of the description; beside the environment that makes them.
_KEPT = 3


@functools.cache
def outside_python() -> str:
    """The Python of that environment. Skips the test where there is none."""
    python = os.environ.get("FORGELET_OPENAPI_PYTHON") or _made_beside()
    if not os.access(python, os.X_OK):
        pytest.skip("needs the environment of the extra `openapi`: run scripts/test")
    return python


def _made_beside() -> str:
    """The Python of the environment beside ours, which is made unless it is there. Raises `CalledProcessError` where
    that fails."""
    environments = CHECKOUT / ".venv"
    if Path(sys.prefix).parent != environments:
        return ""
    command = ["sh", "-c", ". scripts/python.sh && beside openapi", "scripts/test"]
    environment = {**os.environ, "FORGELET_PYTHON": sys._base_executable}  # type: ignore[attr-defined]
    with (environments / "openapi.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers wait
        done = subprocess.run(
            command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return done.stdout


def run_outside(*arguments: str, **options: str) -> "subprocess.CompletedProcess[str]":
    """`arguments` given to that Python; `options` are variables of its environment."""
    environment = {"PATH": os.environ["PATH"], **options}
    command = [outside_python(), "-P", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def generated_client(description: bytes) -> tuple[Path, str]:
    """The folder that holds the package `generated`, a client made of the description by openapi-python-client, and
    what was said while it was made. Made once for each description."""
    digest = hashlib.sha256(description).hexdigest()[:16]
    folder = Path(outside_python()).parents[1] / "generated" / digest
    if not folder.exists():
        _generate(description, folder)
    return folder, (folder / "said").read_text()


def _generate(description: bytes, folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix="."))
    (made / "openapi.json").write_bytes(description)
    (made / "config.yml").write_text("post_hooks: []\n")
    command = ["-m", "openapi_python_client", "generate", "--meta", "none"]
    places = ["--path", "openapi.json", "--config", "config.yml", "--output-path", "generated"]
    done = subprocess.run(
        [outside_python(), "-P", *command, *places], cwd=made, capture_output=True, text=True, timeout=120
    )
    (made / "said").write_text(done.stdout + done.stderr)
    try:
        made.rename(folder)
    except OSError:  # another worker was faster
        shutil.rmtree(made)
    older = sorted(folder.parent.glob("[0-9a-f]*"), key=lambda one: one.stat().st_mtime)
    for one in older[:-_KEPT]:
        shutil.rmtree(one, ignore_errors=True)
