"""How a push is read and judged, and which LFS pointers its commits have brought."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.git.lfs_pointers import Pointer, parse_pointer, pointers_in
from api_server.git.receive_pack import push_gate, report_of
from api_server.git.received_push import (
    MalformedPushError,
    Push,
    PushParser,
    RefUpdate,
    Verdict,
    refusal_of,
    refused_names,
    refused_refs,
)
from api_server.git.smart_http import HOOKS
from tests.api_server.git.conftest import Service
from tests.support.git_client import Git
from tests.support.raw_push import packet

SHAS = st.text("0123456789abcdef", min_size=40, max_size=40)
REFS = st.from_regex(r"refs/(heads|tags)/[^\x00-\x20\x7f\ud800-\udfff]{1,40}", fullmatch=True)
UPDATES = st.lists(st.builds(RefUpdate, SHAS, SHAS, REFS), max_size=8)
OPTIONS = st.lists(st.from_regex(r"[a-z.=]{1,20}", fullmatch=True), max_size=3)


def request(updates: list[RefUpdate], options: list[str], shallow: list[str]) -> bytes:
    """A request's head as git writes it."""
    lines = [f"shallow {sha}".encode() for sha in shallow]
    for n, update in enumerate(updates):
        capabilities = b"\0 report-status-v2 push-options agent=git/2" if n == 0 else b""
        lines.append(f"{update.old} {update.new} {update.ref}".encode() + capabilities + b"\n")
    head = b"".join(map(packet, lines)) + b"0000"
    return head + b"".join(packet(o.encode()) for o in options) + b"0000" if updates else head


@given(UPDATES, OPTIONS, st.lists(SHAS, max_size=2), st.binary(max_size=30), st.data())
def test_what_git_writes_is_read_however_it_is_cut(updates, options, shallow, pack, data) -> None:
    head = request(updates, options, shallow)
    body = head + pack
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    parser = PushParser()
    taken = b""
    for piece in pieces:
        taken += piece
        if parser.feed(piece):
            break
    assert parser.updates == updates
    assert parser.options == (options if updates else [])
    assert bytes(parser.received) == taken
    assert len(taken) >= len(head)


@given(UPDATES, OPTIONS, st.data())
def test_a_head_cut_short_is_never_complete(updates, options, data) -> None:
    head = request(updates, options, [])
    assert not PushParser().feed(head[: data.draw(st.integers(0, len(head) - 1))])


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waits_for_more_and_never_fails_otherwise(garbage: bytes) -> None:
    parser = PushParser()
    try:
        parser.feed(garbage)
    except MalformedPushError:
        return
    assert len(parser.updates) * 83 <= len(garbage)


@pytest.mark.parametrize(
    "line",
    [
        b"push-cert\0report-status",
        b"",
        b"refs/heads/main",
        b"%s %s " % (b"0" * 40, b"1" * 40),
        b"%s %s refs/heads/main" % (b"A" * 40, b"1" * 40),
        b"shallow short",
    ],
)
def test_a_line_that_is_no_ref_update_is_refused(line: bytes) -> None:
    with pytest.raises(MalformedPushError):
        PushParser().feed(packet(line))


@pytest.mark.parametrize(
    "commands", [b"", request([RefUpdate("0" * 40, "1" * 40, "refs/heads/x")], [], [])[:-4]]
)
@pytest.mark.parametrize("length", [b"0001", b"0002", b"0003", b"0004", b"xyz0", b" 012", b"+123"])
def test_an_impossible_packet_length_is_refused(commands: bytes, length: bytes) -> None:
    """Among the commands and among the options, which follow them."""
    parser = PushParser()
    assert not parser.feed(commands)
    with pytest.raises(MalformedPushError):
        parser.feed(length)


def test_the_number_of_updates_is_bounded() -> None:
    line = packet(b"%s %s refs/heads/%s" % (b"0" * 40, b"1" * 40, b"x" * 60_000))
    parser = PushParser()
    with pytest.raises(MalformedPushError, match="too many"):
        parser.feed(line * 1000)


@pytest.mark.parametrize(
    ("update", "refusal"),
    [
        (RefUpdate("0" * 40, "1" * 40, "refs/heads/\udcff"), "not a valid name"),
        (RefUpdate("0" * 40, "1" * 40, "HEAD..x"), "not a valid name"),
        (RefUpdate("0" * 40, "1" * 40, "refs/keep-around/x"), "kept by the server"),
        (RefUpdate("0" * 40, "1" * 40, f"refs/tags/{'a' * 40}"), "not a valid name"),
        (RefUpdate("0" * 40, "1" * 40, "refs/heads/HEAD"), "not a valid name"),
        (RefUpdate("0" * 40, "1" * 40, "HEAD"), "not a valid name"),
        (RefUpdate("1" * 40, "0" * 40, "refs/heads/HEAD"), None),
        (RefUpdate("2" * 40, "1" * 40, "refs/heads/refs/heads/main"), None),
        (RefUpdate("0" * 40, "1" * 40, "refs/notes/HEAD"), None),
        (RefUpdate("1" * 40, "0" * 40, "refs/heads/main"), "not allowed to delete"),
        (RefUpdate("0" * 40, "1" * 40, "refs/heads/main"), None),
        (RefUpdate("2" * 40, "1" * 40, "refs/heads/main"), None),
    ],
)
def test_a_push_is_refused_for_its_refs(update: RefUpdate, refusal: str | None) -> None:
    push, verdict = Push((update,)), Verdict(fast_forward_only=frozenset({"refs/heads/main"}))
    refused = refused_names(push) | refused_refs(push, verdict)
    found = refusal_of(push, verdict, refused)
    assert found is None if refusal is None else refusal in (found or "")
    assert refused == ({} if refusal is None else {update.ref: found})


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
    service: Service, git: Git, clone: Path, monkeypatch: pytest.MonkeyPatch
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


_OIDS = st.binary(min_size=32, max_size=32).map(bytes.hex)


def text(pointer: Pointer) -> str:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{pointer.oid}\nsize {pointer.size}\n"


def numbered(number: int) -> Pointer:
    return Pointer(f"{number:064x}", number)


@given(oid=_OIDS, size=st.integers(0, 10**18 - 1), extension=st.booleans())
def test_what_git_lfs_writes_is_read(oid: str, size: int, extension: bool) -> None:
    written = text(Pointer(oid, size))
    if extension:
        written = written.replace("\noid", f"\next-0-caps sha256:{'f' * 64}\noid")
    assert parse_pointer(written.encode()) == Pointer(oid, size)


@given(content=st.binary(max_size=2000))
def test_nothing_else_is_a_pointer(content: bytes) -> None:
    assert parse_pointer(content) is None
    assert parse_pointer(text(numbered(1)).encode() + b"x" * 1024) is None


@pytest.mark.parametrize(
    "content",
    [
        "version https://git-lfs.github.com/spec/v2\noid sha256:" + "0" * 64 + "\nsize 1\n",
        "version https://git-lfs.github.com/spec/v1\noid sha512:" + "0" * 64 + "\nsize 1\n",
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 63 + "\nsize 1\n",
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize -1\n",
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\n",
    ],
)
def test_what_only_looks_like_a_pointer_is_none(content: str) -> None:
    assert parse_pointer(content.encode()) is None


async def test_what_new_commits_have_brought_and_nothing_older(tmp_path: Path) -> None:
    git = Git(tmp_path)
    await git.init()
    first = await git.commit_files({"a": text(numbered(1)), "plain": "x", "large": "y" * 5000})
    second = await git.commit_files({"sub dir/\tb\n": text(numbered(2))})
    await git("checkout", "--quiet", "-b", "side", first)
    side = await git.commit_files({"a": text(numbered(3))})
    await git("checkout", "--quiet", "main")
    await git("merge", "--quiet", "--no-commit", "side")
    merge = await git.commit_files({"c": text(numbered(4))})
    (tmp_path / "c").unlink()
    (tmp_path / "link").symlink_to("a")
    last = await git.commit_files({"d": "d"})
    await git("tag", "--annotate", "--message", "x", "v1")
    tag, repository = await git("rev-parse", "v1"), tmp_path / ".git"
    unknown = "0123456789" * 4

    async def found(tips: list[str], *known: str) -> set[int]:
        return {pointer.size for pointer in await pointers_in(repository, tips, known)}

    assert await found([last]) == await found([tag], unknown) == {1, 2, 3, 4}
    assert await found([last], first) == {2, 3, 4}
    assert await found([last], second) == {3, 4}
    assert await found([last], second, side) == {4}
    assert await found([last], merge) == set()
    assert await found([side, second], first) == {2, 3}
    assert await found([]) == await found([first], first) == await found([unknown]) == set()
    tree, blob = await git("rev-parse", "main^{tree}"), await git("rev-parse", "main:a")
    assert await found([tree, blob]) == set()


async def test_many_pointers_come_through_whatever_the_size_of_what_git_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = Git(tmp_path)
    await git.init()
    last = await git.commit_files({f"f{number}": text(numbered(number)) for number in range(500)})
    monkeypatch.setattr("api_server.git.processes.CHUNK_BYTES", 37)
    assert await pointers_in(tmp_path / ".git", [last], []) == {numbered(number) for number in range(500)}
