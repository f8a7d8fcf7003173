"""The pre-receive hook and what it is told: only a whole "accepted" lets a push happen."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from api_server.git.push_gate import push_gate
from api_server.git.received_push import Push, RefUpdate, Verdict
from api_server.git.smart_http import HOOKS
from tests.api_server.git.conftest import Client, Service

NOT_JUDGED = "The push could not be judged, try again."
UPDATE = RefUpdate("1" * 40, "2" * 40, "refs/heads/main")


async def _hook(verdict: bytes) -> tuple[int, str]:
    """Runs the hook alone, in a folder that is no repository, and tells it `verdict`."""
    with push_gate() as gate:
        process = await asyncio.create_subprocess_exec(
            HOOKS / "pre-receive",
            env={"PATH": os.environ["PATH"], "GIT_QUARANTINE_PATH": "/q"} | gate.environment,
            cwd="/",
            stderr=asyncio.subprocess.PIPE,
            pass_fds=gate.childs_ends,
        )
        gate.let_go()
        assert await gate.question() == Path("/q")
        os.write(gate._verdicts, verdict)
        gate.close()
        _, told = await process.communicate()
        return process.returncode or 0, told.decode().strip()


@pytest.mark.parametrize("verdict", [b"", b"accepted\n", b"accept", b"accepted\nen", b"yes\nend\n", b"end\n"])
async def test_whatever_is_no_whole_verdict_refuses(verdict: bytes) -> None:
    """A server that dies has said less than it wanted to."""
    assert await _hook(verdict) == (1, NOT_JUDGED)


async def test_a_sentence_refuses_and_an_end_accepts() -> None:
    sentence = "100% $(sure) 'here' \\n `there`"
    assert await _hook(f"refused\n{sentence}\n".encode()) == (1, sentence)
    assert await _hook(b"accepted\nend\n") == (0, "")


async def test_what_cannot_be_looked_up_is_no_fast_forward() -> None:
    status, told = await _hook(f"accepted\n{UPDATE.old} {UPDATE.new} {UPDATE.ref}\nend\n".encode())
    assert status == 1
    assert told.endswith("You are not allowed to force push to the protected refs/heads/main.")


async def test_a_verdict_longer_than_any_pipe_is_told_whole() -> None:
    updates = [UPDATE] * 2000
    with push_gate() as gate:
        told = asyncio.create_task(gate.accept(updates))
        verdict = os.dup(gate.childs_ends[1])
        gate.let_go()
        with os.fdopen(verdict, "rb") as pipe:
            text = await asyncio.to_thread(pipe.read)
        await told
    assert text.decode().splitlines() == [
        "accepted",
        *[f"{UPDATE.old} {UPDATE.new} {UPDATE.ref}"] * 2000,
        "end",
    ]


async def test_a_failure_of_the_judge_refuses_the_push(
    service: Service, git: Client, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def broken(_service: Service, _push: Push, _arrived: Path | None) -> AsyncIterator[Verdict]:
        raise RuntimeError
        yield Verdict()

    before = await git("ls-remote", service.url)
    await git.commit_file(clone, "second.txt")
    monkeypatch.setattr(Service, "judge", broken)
    printed = await git("push", cwd=clone, fails=True)
    assert f"remote: {NOT_JUDGED}" in printed
    assert await git("ls-remote", service.url) == before
