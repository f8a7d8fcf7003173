"""Shared parts of the tools: tables, waiting, processes, commits, archives, git."""

import asyncio
import io
import json
import os
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api_server.description.document import document
from scripts.fuzz import leniency
from scripts.harness.contents import archive, commit_head, commit_values, data, git, multipart
from scripts.harness.processes import resident_bytes, retry_until, run_forgelet, server_in, wait_until
from scripts.harness.report import Table, counted, missed_aims, with_misses
from tests.support.checkout import CHECKOUT
from tests.support.outside import INSTALLS, outside_python
from tests.support.route_table import ROUTES


def test_a_process_that_has_ended_has_no_memory() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays, as one that nobody has waited for
    assert resident_bytes(child.pid) == 0
    child.wait()
    assert resident_bytes(child.pid) == 0
    assert resident_bytes(os.getpid()) > 0


def test_rows_stand_below_their_heading() -> None:
    table = Table(("attack", 8), ("p99", 5), last="answers")
    assert table.heading == "attack    p99  answers"
    row = table.row("bomb", 7, last=with_misses(counted(Counter({"200": 3, "cut": 1}), 2), ["slow"]))
    assert row == "bomb        7  3 x 200, 1 x cut  MISSED slow"
    assert missed_aims({"slow": True, "memory": False}) == ["slow"]


async def test_what_was_seen_last_is_returned_whether_it_is_done_or_not() -> None:
    seen = iter(range(100))

    async def look() -> int:
        return next(seen)

    assert await retry_until(look, 10, is_done=lambda number: number == 3, pause=0) == 3
    assert await retry_until(look, 0, is_done=lambda _: False) == 4
    assert not await wait_until(lambda: False, 0)


async def test_the_server_of_a_folder_is_not_one_of_its_children(tmp_path: Path) -> None:
    with pytest.raises(ProcessLookupError, match="0 servers"):
        server_in(tmp_path)
    child = "import subprocess, sys; subprocess.run(['cat'], stdin=sys.stdin)"
    with subprocess.Popen([sys.executable, "-c", child], cwd=tmp_path, stdin=subprocess.PIPE) as process:
        await asyncio.sleep(0.2)  # until it has a child
        assert server_in(tmp_path) == process.pid
        assert process.stdin is not None
        process.stdin.close()


def test_a_command_that_fails_is_told_with_its_words() -> None:
    with pytest.raises(RuntimeError, match=r"^forgelet no-such-command ended with 2: .*no-such-command"):
        run_forgelet(["no-such-command"], {"PATH": "", "PYTHONPATH": str(Path(__file__).parents[2])})


def test_bodies_are_what_the_service_takes() -> None:
    files = {"a.txt": "a"}
    action = {"action": "update", "file_path": "a.txt", "content": "a"}
    assert commit_values("topic", files, action="update", start_branch="main") == {
        "branch": "topic",
        "commit_message": "Change",
        "actions": [action],
        "start_branch": "main",
    }
    with zipfile.ZipFile(io.BytesIO(archive(files))) as read:
        assert read.read("a.txt") == b"a"
    body, content_type = multipart(b"content")
    boundary = content_type.partition("boundary=")[2].encode()
    assert body.startswith(b"--" + boundary)
    assert b"\r\n\r\ncontent\r\n--" + boundary + b"--\r\n" in body


def test_repositories_are_made_of_streams_and_failures_told(tmp_path: Path) -> None:
    repository = tmp_path / "a.git"
    git(repository, "init", "--quiet", "--bare")
    stream = [commit_head("main", "First"), b"M 100644 inline a.txt\n", data(b"a")]
    git(repository, "fast-import", "--quiet", stdin=stream)
    assert git(repository, "show", "main:a.txt") == "a"
    with pytest.raises(RuntimeError, match="git show failed"):
        git(repository, "show", "none")


#: The n-th part of the operations is tested here, in the order of their ids, because the data for one takes 50 ms.
_ONE_IN = 8


@INSTALLS
def test_nothing_is_found() -> None:
    paths = document(ROUTES)["paths"]
    names = sorted(operation["operationId"] for item in paths.values() for operation in item.values())
    some = names[::_ONE_IN]
    done = _fuzz("--cases", str(2 * len(some)), *some, FORGELET_OPENAPI_PYTHON=outside_python())
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"cases of {len(some)} operations; 0 errors in the log." in done.stdout


def test_it_needs_the_environment_of_schemathesis() -> None:
    done = _fuzz(FORGELET_OPENAPI_PYTHON="/nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert "scripts/fuzz/run sees to it" in done.stderr


@pytest.mark.parametrize(
    ("status", "answer", "is_found"),
    [
        (400, {"error": "name is invalid"}, True),
        (400, {"message": {"name": ["has already been taken"]}}, False),
        (400, {"error": "name, url are missing, at least one parameter must be provided"}, False),
        (400, {"error": "order_by does not have a valid value"}, False),
        (400, {"error": "order_by does not have a valid value, sort does not have a valid value"}, True),
        (400, {"error": "expires_at is not supported by this service"}, False),
        (415, {"error": "The provided content-type is not supported."}, True),
        (422, {"message": "Ref is not specified"}, False),
    ],
)
def test_what_is_refused_for_the_state_of_things_is_no_finding(
    status: int, answer: Any, is_found: bool
) -> None:
    body = json.dumps(answer).encode()
    assert leniency.counts("RejectedPositiveData", None, status, body) is is_found


def test_a_path_that_is_another_operations_too_is_not_undescribed() -> None:
    paths = document(ROUTES)["paths"]
    schema = SimpleNamespace(raw_schema={"paths": paths})
    for path, is_found in (("/runners/all", False), ("/metadata", True)):
        operation = SimpleNamespace(path=path, schema=schema)
        case = SimpleNamespace(formatted_path=path, operation=operation, method="PUT")
        assert leniency.counts("UnsupportedMethodResponse", case, 400, b"{}") is is_found


def test_what_is_taken_beside_what_is_described() -> None:
    described = document(ROUTES)
    leniency.describe(described)
    fields = described["components"]["schemas"]["CreateProjectRemoteMirrorBody"]["properties"]
    assert {"type": "null"} in fields["enabled"]["anyOf"]
    assert {"const": ""} in fields["enabled"]["anyOf"]
    assert fields["url"] == {"anyOf": [fields["url"]["anyOf"][0], {"type": "number"}]}


def _fuzz(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **variables}
    command = [sys.executable, "-P", "-m", "scripts.fuzz", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=Path.home(), timeout=170
    )
