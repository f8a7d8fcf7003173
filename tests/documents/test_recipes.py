"""The recipes of docs/testing.md, each run as a user runs a copy of it."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkout import CHECKOUT

RECIPES = CHECKOUT / "docs" / "recipes"
SECONDS = 120
#: Programs that read the ready file; they are skipped if their language is not installed.
PROGRAMS = [
    ("sh", "client.sh"),
    ("java", "Client.java"),
    ("go", "run", "client.go"),
    ("ruby", "client.rb"),
    ("dotnet", "run", "Client.cs"),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which `forgelet` is installed. No recipe needs the edge, nor a compiler with slow
    optimisation."""
    programs = tmp_path_factory.mktemp("bin")
    (programs / "forgelet").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m forgelet "$@" --no-edge\n')
    (programs / "forgelet").chmod(0o755)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("FORGELET_")}
    kept["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
    return {**kept, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(CHECKOUT)}


@pytest.fixture(scope="module")
def ready_file(environment: dict[str, str]) -> Iterator[str]:
    """The ready file of the server that `with-forgelet.sh` starts, and ends with the given command."""
    with subprocess.Popen(
        [
            "sh",
            str(RECIPES / "with-forgelet.sh"),
            "sh",
            "-c",
            'echo "$FORGELET_READY_FILE"; read line; exit 7',
        ],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        path = server.stdout.readline().strip()
        assert path
        yield path
        server.communicate(timeout=SECONDS)
    assert server.returncode == 7
    assert not Path(path).parent.exists()


def run(folder: Path, *command: str, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program[-1])
def test_a_program_finds_the_server(
    program: tuple[str, ...], ready_file: str, environment: dict[str, str]
) -> None:
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not on this machine")
    said = run(RECIPES, *program, **environment | {"FORGELET_READY_FILE": ready_file})
    assert said.splitlines()[-1] == "made root/hello"


def test_unittest(environment: dict[str, str]) -> None:
    assert "Ran 3 tests" in run(RECIPES, sys.executable, "-m", "unittest", "test_client", **environment)


def test_vitest_with_gitbeaker(environment: dict[str, str]) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not on this machine")
    with installed(RECIPES / "vitest") as folder:
        said = run(folder, "npm", "test", **environment | {"NO_COLOR": "1", "FORCE_COLOR": "0"})
    assert "3 passed" in said


@contextlib.contextmanager
def installed(recipe: Path) -> Iterator[Path]:
    """Yield a copy of a recipe with its packages, which is kept for later runs. Only one run at a time uses it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forgelet-tests"
    wanted = hashlib.sha256((recipe / "package.json").read_bytes()).hexdigest()[:12]
    folder = cache / f"{recipe.name}-{wanted}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.copytree(recipe, folder, dirs_exist_ok=True)
        done = folder / ".installed"
        if not done.exists():
            command = ("npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund")
            run(folder, *command, **os.environ)
            done.touch()
        yield folder
