"""What the tools have in common: tables, waiting, processes, commits, archives, git."""

import asyncio
import io
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from scripts.harness.contents import archive, commit_head, commit_values, data, git, multipart
from scripts.harness.processes import retry_until, run_forgelet, server_in, wait_until
from scripts.harness.report import Table, counted, missed_aims, with_misses


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
