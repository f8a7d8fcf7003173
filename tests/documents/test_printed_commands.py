"""Every command that a document prints is run unchanged, beside a running service."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support.checkout import CHECKOUT
from tests.support.ports import free_port

from .printed_commands import Block, blocks, documents

SECONDS = 120
#: Beginnings of commands that are not run here, and why.
ELSEWHERE = {
    "FORGELET_API_DATABASE_URL=": "wants roles of a database; tests/api_server/state/test_migrate.py has them",
    "forgelet api": "serves until it is stopped; `up` starts it, test_settings_reference.py has its settings",
    "forgelet edge": "serves until it is stopped; tests/storage_edge/ and `up` start it",
    "forgelet worker": "works until it is stopped; tests/api_server/test_worker.py starts it",
    "scripts/abuse/run": "takes minutes; tests/scripts/test_abuse.py has a short one",
    "scripts/fuzz/run": "takes minutes; tests/scripts/test_harness.py has a short one",
    "scripts/bench/run": "takes minutes; tests/scripts/test_bench.py has a short one",
    "scripts/check": "runs beside the tests",
    "scripts/faults/run": "takes minutes; tests/scripts/test_faults.py has a short one",
    "scripts/test": "is what runs",
    "scripts/up": "runs already",
    "sudo ": "changes the machine; tests/documents/test_install.py holds the files that are installed",
}
#: Documents whose blocks are examples of code instead of commands.
EXAMPLES = {"docs/extending.md"}


@attrs.frozen
class Place:
    """A folder with a running service whose data is in `.forgelet`, as in a checkout after `scripts/up`."""

    folder: Path
    environment: dict[str, str]
    ports: tuple[int, int]

    def typed(self, text: str) -> str:
        """Return the text for a person who has chosen other ports."""
        return re.sub(
            r"(127\.0\.0\.1|localhost):(8080|8081)", lambda at: f"{at[1]}:{self._port(at[2])}", text
        )

    def _port(self, printed: str) -> int:
        return self.ports[0] if printed == "8080" else self.ports[1]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("check out")
    folder.chmod(0o711)
    first, second = free_port(), free_port()
    programs = folder / "bin"
    programs.mkdir()
    (programs / "forgelet").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m forgelet "$@"\n')
    (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    (folder / "scripts").mkdir()
    (folder / "scripts" / "forgelet").symlink_to(programs / "forgelet")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FORGELET_")} | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(CHECKOUT),
        "HOME": str(folder),
        "FORGELET_DATA_DIR": str(folder / ".forgelet"),
        "GIT_TERMINAL_PROMPT": "0",
    }
    up = subprocess.Popen(
        [str(programs / "forgelet"), "up", "--api-port", str(first), "--edge-port", str(second)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert up.stdout is not None
        shown = ""
        for line in up.stdout:
            shown += line
            if line.startswith("To sign in as root"):
                break
        else:
            pytest.fail(f"up ended early: {shown}")
        (folder / "shown").write_text(shown)
        place = Place(folder, environment, (first, second))
        (folder / "examined").write_text(place.run("forgelet", "doctor").stdout)  # before any command
        yield place
    finally:
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=SECONDS)


def is_typed_in(command: str) -> bool:
    return not command.startswith(tuple(ELSEWHERE))


COMMANDS = [block for block in blocks() if block.document not in EXAMPLES]


#: Beginnings of commands that change nothing: these run only once.
READING = (
    "curl ",
    "echo 'correct horse battery' | scripts/forgelet user password",  # the same as before
    "forgelet jobs remove-data --before 2026-01-01 --dry-run",
    "forgelet store sweep --dry-run",
    "scripts/forgelet config",
    "scripts/forgelet doctor",
)


def problems_of(running: Place, block: Block) -> Iterator[str]:
    """Yield the errors of a block that is pasted once, or twice if it changes something."""
    if block.language == "sh" and not any(map(is_typed_in, block.commands)):
        return  # a test below covers the others
    text = running.typed(block.text)
    program = ("sh", "-euc", text) if block.language == "sh" else ("python3", "-c", text)
    if is_of_tests := re.search(r"^def test_", text, re.MULTILINE) is not None:
        (running.folder / "test_printed.py").write_text(text)
        program = ("python3", "-m", "pytest", "-p", "forgelet.pytest", "-c", os.devnull, "test_printed.py")
    reads = block.language == "sh" and all(command.startswith(READING) for command in block.commands)
    for _ in range(1 if reads or is_of_tests else 2):
        ran = running.run(*program)
        if ran.returncode != 0 or re.search(r"^HTTP/\S+ [45]", ran.stdout, re.MULTILINE):
            yield f"{block.id}: status {ran.returncode}: {ran.stdout[-2000:]}"


@pytest.mark.timeout(600)
def test_what_is_printed_works_and_works_again(running: Place) -> None:
    """This is one test, so that the service is started only once, however many workers there are."""
    assert findings_of_a_new_service(running) == []
    shown = (running.folder / "shown").read_text()
    to_try = shown.partition("Try:")[2].partition("Ctrl-C")[0]
    by_up = Block("up", 0, "sh", to_try)
    assert by_up.commands
    assert [problem for block in [by_up, *COMMANDS] for problem in problems_of(running, block)] == []
    assert addresses_that_do_not_open(running) == []


@pytest.mark.timeout(600)
def test_the_demo_has_what_it_says(running: Place) -> None:
    """It is created while the service is used; and the link that `up` prints signs in."""
    token = (running.folder / ".forgelet/secrets/alice-token").read_text().strip()

    def asked(path: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{running.ports[0]}/api/v4/projects/demo%2Fapp/{path}"
        answer = running.run("curl", "-sS", "-H", f"PRIVATE-TOKEN: {token}", url).stdout
        found = json.loads(answer)
        return found if isinstance(found, list) else []

    def told() -> dict[str, Any]:
        return {
            "pipelines": {(each["ref"], each["status"]) for each in asked("pipelines")},
            "checks": {(each["name"], each["status"]) for each in asked("merge_requests/1/status_checks")},
            "mirror": [(each["update_status"], each["last_error"]) for each in asked("remote_mirrors")],
            "notes": {each["author"]["username"] for each in asked("merge_requests/1/notes")},
            "invited": [each["invite_email"] for each in asked("invitations")],
            "files": {
                each["filename"] for job in asked("jobs?scope=success") for each in job.get("artifacts", [])
            },
        }

    expected = {
        "pipelines": {
            ("main", "success"), ("more-workers", "success"), ("v1.0", "success"), ("faster-start", "failed"),
        },
        "checks": {("Security scan", "passed"), ("Licence check", "failed")},
        "mirror": [("finished", None)],
        "notes": {"alice", "erin"},
        "invited": ["frank@example.org"],
    }  # fmt: skip
    deadline = time.monotonic() + SECONDS
    while (found := told()) | {"files": None} != expected | {"files": None} and time.monotonic() < deadline:
        time.sleep(0.5)
    files = found.pop("files")
    assert found == expected
    assert "artifacts.zip" in files
    link = re.search(r"open (\S+)", (running.folder / "shown").read_text())
    assert link is not None
    assert "Sign in as root</button>" in running.run("curl", "-sS", link[1]).stdout


def findings_of_a_new_service(running: Place) -> list[str]:
    """The findings of doctor about a service that had just been started."""
    findings = (running.folder / "examined").read_text().splitlines()
    assert len(findings) >= 15
    return [line for line in findings if not line.startswith("ok ")]


def addresses_that_do_not_open(running: Place) -> list[str]:
    links = {link for path in documents() for link in re.findall(r"<(http://127[^>]*)>", path.read_text())}
    assert len(links) > 1
    return [
        link for link in links if running.run("curl", "-fsSL", "-o", "page", running.typed(link)).returncode
    ]


def test_what_is_not_typed_in_is_printed_somewhere() -> None:
    printed = [command for block in COMMANDS if block.language == "sh" for command in block.commands]
    assert [start for start in ELSEWHERE if not any(command.startswith(start) for command in printed)] == []
