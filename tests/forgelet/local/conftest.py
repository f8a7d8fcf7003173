"""Functions that run `up` in a folder, for tests of the local commands."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from tests.support.checkout import CHECKOUT
from tests.support.ports import free_port

#: Far longer than anything takes, even on a busy machine.
SECONDS = 100


@attrs.define
class Up:
    """A running `up` with stand-ins."""

    process: subprocess.Popen[str]
    data: Path
    ports: tuple[int, int]
    shown: str = ""
    ready_file: Path = Path()

    def wait_until_ready(self, last: str = "Ctrl-C") -> str:
        """Return the whole output up to the line of the closing text that begins with `last`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.shown += line
            if line.startswith(last):
                return self.shown
        pytest.fail(f"up ended early: {self.shown}{self.outcome()}")

    def wait_for(self, words: str) -> str:
        """Return the next line that contains `words`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.shown += line
            if words in line:
                return line
        pytest.fail(f"up ended early: {self.shown}{self.outcome()}")

    def child(self, role: str) -> int:
        """Return the process id of the last started stand-in `role`."""
        return int((self.data / role / "pid").read_text())

    def children(self) -> list[int]:
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in task.read_text().split()]

    def descendants(self) -> list[int]:
        """Return all processes below this one."""
        found, new = [], self.children()
        while new:
            found += new
            below = [of_process(pid, f"task/{pid}/children") for pid in new]
            new = [int(pid) for pids in below for pid in pids.split()]
        return found

    def hang_up(self) -> None:
        """Close the pipe that is its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def outcome(self) -> tuple[int, str]:
        """Return exit status and standard error, once the process has ended."""
        output, errors = self.process.communicate(timeout=SECONDS)
        self.shown += output or ""
        return self.process.returncode, errors


@pytest.fixture
def start_up(run: Callable[..., subprocess.Popen[str]], place: Path) -> Callable[..., Up]:
    """A function that starts `up` in `place`, with free ports and without demo data."""

    def start(
        *options: str,
        data: Path | None = None,
        ports: tuple[int, int] | None = None,
        stdout: int = subprocess.PIPE,
        **extra: str,
    ) -> Up:
        ports = ports or free_ports()
        data = data or place / "data"
        where = ("--data-dir", str(data), "--api-port", str(ports[0]), "--edge-port", str(ports[1]))
        return Up(run("--no-demo", *where, *options, stdout=stdout, **extra), data, ports)

    return start


@pytest.fixture
def start_testing(run: Callable[..., subprocess.Popen[str]], place: Path) -> Callable[..., Up]:
    """A function that starts `up --testing`, each time with another ready file unless one is given."""
    numbers = itertools.count()

    def start(
        *options: str, ready_file: Path | None = None, stdin: int = subprocess.DEVNULL, **extra: str
    ) -> Up:
        ready_file = ready_file or place / f"ready-{next(numbers)}.json"
        process = run("--testing", "--ready-file", str(ready_file), *options, stdin=stdin, **extra)
        return Up(process, place, (0, 0), ready_file=ready_file)

    return start


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the tests of a worker store templates of databases, since it takes seconds to create one."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture
def run(place: Path, caches: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts `up` with stand-ins; processes that a test leaves running are ended."""
    running: list[subprocess.Popen[str]] = []

    def start(
        *options: str, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.PIPE, **extra: str
    ) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FORGELET_")}
        process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("up_with_stand_ins.py")), *options],
            cwd=place,
            env={
                **environment,
                "PYTHONPATH": str(CHECKOUT),
                "XDG_STATE_HOME": str(place),
                "XDG_CACHE_HOME": str(caches),
                **extra,
            },
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)


def given(data: Path, role: str) -> dict[str, str]:
    """Return the variables that the stand-in `role` has received."""
    found: dict[str, str] = json.loads((data / role / "environment.json").read_text())
    return found


def of_process(pid: int, what: str) -> str:
    """Return a text of the kernel about a process; an empty text if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def free_ports() -> tuple[int, int]:
    first = second = free_port()
    while second == first:
        second = free_port()
    return first, second


def come_true(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait until the condition is true; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gone(pids: list[int], seconds: float = 5.0) -> bool:
    """Return whether all of `pids` end within `seconds`; a zombie has ended."""
    deadline = time.monotonic() + seconds
    while any(_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _alive(pid: int) -> bool:
    try:
        return re.search(r"^State:\s+[ZX]", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE) is None
    except (FileNotFoundError, ProcessLookupError):
        return False
