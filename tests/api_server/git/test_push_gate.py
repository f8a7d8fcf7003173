"""The pre-receive hook and what it is told: only a whole "accepted" lets a push happen."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from api_server.git.receive_pack import push_gate, report_of
from api_server.git.received_push import Push, RefUpdate, Verdict, packet
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


@pytest.mark.parametrize("verdict", [b"", b"accept", b"refuse", b"yes\naccepted\n", b"end\n"])
async def test_whatever_is_no_whole_verdict_refuses(verdict: bytes) -> None:
    """A server that dies has said less than it wanted to."""
    assert await _hook(verdict) == (1, NOT_JUDGED)


async def test_a_sentence_refuses_and_an_end_accepts() -> None:
    sentence = "100% $(sure) 'here' \\n `there`"
    assert await _hook(f"refused\n{sentence}\n".encode()) == (1, sentence)
    assert await _hook(b"accepted\n0000") == (0, "")


async def test_a_report_longer_than_any_pipe_is_told_whole() -> None:
    report = report_of([UPDATE] * 2000, {})
    with push_gate() as gate:
        told = asyncio.create_task(gate.accept(report))
        verdict = os.dup(gate.childs_ends[1])
        gate.let_go()
        with os.fdopen(verdict, "rb") as pipe:
            text = await asyncio.to_thread(pipe.read)
        await told
    one = b"0016ok refs/heads/main0017option fall-through"
    assert text == b"accepted\n000dversion=10000" + one * 2000 + b"0000"


#: (refs of a push, those that are refused, what is reported of each).
REPORTS: list[tuple[list[str], dict[str, str], list[bytes]]] = [
    (["refs/heads/a"], {"refs/heads/a": "No  way\n, really."}, [b"ng refs/heads/a No way , really."]),
    (["refs/heads/\udcff"], {"refs/heads/\udcff": "x"}, [b"ng refs/heads/\xff x"]),
    (
        ["refs/merge-requests/1/head", "refs/keep-around", "refs/a"],
        {},
        [b"ok refs/a", b"option fall-through"],
    ),
    (["refs/heads/a b", "HEAD", "refs/heads/" + "x" * 1100], {}, []),
]


@pytest.mark.parametrize(("refs", "refused", "lines"), REPORTS)
def test_git_is_told_of_each_ref_that_a_line_can_name(
    refs: list[str], refused: dict[str, str], lines: list[bytes]
) -> None:
    """What is not reported, git refuses."""
    report = report_of([RefUpdate("1" * 40, "2" * 40, ref) for ref in refs], refused)
    assert report == b"000dversion=10000" + b"".join(map(packet, lines)) + b"0000"


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
