"""Tools that examine the API's description from outside, in an environment of their own.

The first test that needs the environment creates it from the extra `openapi` of pyproject.toml, beside the environment
of `scripts/test`. In any other environment, FORGELET_OPENAPI_PYTHON has to name its Python, or the tests are skipped.
"""

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from scripts.harness.processes import python_beside

#: For tests that need the environment: the first one has to wait for the installation.
INSTALLS = pytest.mark.timeout(900)
#: Number of generated clients that are kept, by the digest of the description, beside the environment.
_KEPT = 3


@functools.cache
def outside_python() -> str:
    """Return the Python of that environment. Skip the test if there is none."""
    python = os.environ.get("FORGELET_OPENAPI_PYTHON") or python_beside("openapi")
    if not os.access(python, os.X_OK):
        pytest.skip("needs the environment of the extra `openapi`: run scripts/test")
    return python


def run_outside(*arguments: str, **options: str) -> "subprocess.CompletedProcess[str]":
    """Run that Python with `arguments`; `options` are variables of its environment."""
    environment = {"PATH": os.environ["PATH"], **options}
    command = [outside_python(), "-P", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def generated_client(description: bytes) -> tuple[Path, str]:
    """Return the folder of the package `generated`, a client that openapi-python-client has generated from the
    description, and the output of the generation. It is generated once for each description."""
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
    except OSError:  # another worker has generated it meanwhile
        shutil.rmtree(made)
    older = sorted(folder.parent.glob("[0-9a-f]*"), key=lambda one: one.stat().st_mtime)
    for one in older[:-_KEPT]:
        shutil.rmtree(one, ignore_errors=True)
