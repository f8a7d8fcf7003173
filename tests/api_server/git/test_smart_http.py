"""Real git clients against the smart HTTP layer, and how a push is read and judged."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from api_server.git.lfs_pointers import Pointer, parse_pointer, pointers_in
from api_server.git.receive_pack import push_gate, read_push, report_of
from api_server.git.received_push import (
    MalformedPushError,
    Push,
    PushParser,
    RefUpdate,
    Verdict,
    applied_updates,
    refusal_of,
    refused_names,
    refused_refs,
)
from api_server.git.ref_moves import set_internal_ref
from api_server.git.repositories import Repositories, open_repository
from api_server.git.smart_http import HOOKS
from tests.api_server.git.conftest import PROJECT, Service, commit
from tests.support.git_client import Git
from tests.support.raw_push import packet
from tests.support.waiting import until

PROTECTED_MAIN = Verdict(fast_forward_only=frozenset({"refs/heads/main"}))


@pytest.mark.parametrize("version", ["0", "1", "2"])
async def test_a_push_arrives_and_is_cloned_in_every_protocol_version(
    service: Service, git: Git, clone: Path, version: str
) -> None:
    await git("-c", f"protocol.version={version}", "clone", "-q", service.url, "again")
    assert (git.folder / "again/readme.txt").read_text() == "content\n"
    head = await git("rev-parse", "HEAD", cwd=clone)
    assert service.applied == [[RefUpdate("0" * 40, head, "refs/heads/main")]]


async def test_an_empty_repository_can_be_cloned(service: Service, git: Git) -> None:
    assert "empty repository" in await git("clone", service.url, "empty")


@pytest.mark.parametrize("version", ["0", "2"])
async def test_a_shallow_clone_has_one_commit_and_can_be_deepened(
    service: Service, git: Git, clone: Path, version: str
) -> None:
    await git.commit_file(clone, "second.txt")
    await git("push", "-q", cwd=clone)
    protocol = ("-c", f"protocol.version={version}")
    await git(*protocol, "clone", "-q", "--depth=1", service.url, "shallow")
    shallow = git.folder / "shallow"
    assert await git("rev-list", "--count", "HEAD", cwd=shallow) == "1"
    await git(*protocol, "fetch", "-q", "--unshallow", cwd=shallow)
    assert await git("rev-list", "--count", "HEAD", cwd=shallow) == "2"


async def test_a_push_from_a_shallow_clone_arrives(service: Service, git: Git, clone: Path) -> None:
    await git.commit_file(clone, "second.txt")
    await git("push", "-q", cwd=clone)
    await git("clone", "-q", "--depth=1", service.url, "shallow")
    head = await git.commit_file(git.folder / "shallow", "third.txt")
    await git("push", "-q", cwd=git.folder / "shallow")
    assert service.applied[-1][0].new == head


async def test_a_partial_clone_leaves_blobs_on_the_server(service: Service, git: Git, clone: Path) -> None:
    await git("clone", "-q", "--filter=blob:none", "--no-checkout", service.url, "partial")
    missing = await git("rev-list", "--objects", "--all", "--missing=print", cwd=git.folder / "partial")
    assert "?" in missing


async def test_any_commit_that_the_server_has_can_be_fetched(service: Service, git: Git, clone: Path) -> None:
    lost = await git.commit_file(clone, "second.txt")
    await git("push", "-q", cwd=clone)
    await git("reset", "-q", "--hard", "HEAD~1", cwd=clone)
    await git("push", "-q", "--force", cwd=clone)
    await git("init", "-q", "job")
    await git("fetch", "-q", "--depth=1", service.url, lost, cwd=git.folder / "job")
    assert await git("rev-parse", "FETCH_HEAD", cwd=git.folder / "job") == lost


async def test_a_refused_push_shows_the_message_and_changes_nothing(
    service: Service, git: Git, clone: Path
) -> None:
    before = await git("rev-parse", "HEAD", cwd=clone)
    service.verdict = Verdict(refusal="You need the role Developer to push; 100% $(sure) 'here'.")
    await git.commit_file(clone, "second.txt")
    printed = await git("push", "origin", "main", "main:other", cwd=clone, fails=True)
    assert "remote: You need the role Developer to push; 100% $(sure) 'here'." in printed
    assert printed.count("pre-receive hook declined") == 2
    assert service.applied[-1] == []
    listed = await git("ls-remote", "--heads", service.url)
    assert listed == f"{before}\trefs/heads/main"


async def test_a_force_push_is_refused_on_a_protected_branch_and_allowed_elsewhere(
    service: Service, git: Git, clone: Path
) -> None:
    service.verdict = PROTECTED_MAIN
    await git("push", "-q", "origin", "main:topic", cwd=clone)
    await git("commit", "-q", "--amend", "-m", "Another history", cwd=clone)
    refused = await git("push", "--force", "origin", "main", cwd=clone, fails=True)
    assert "remote: You are not allowed to force push to the protected refs/heads/main." in refused
    assert service.applied[-1] == []
    await git("push", "-q", "--force", "origin", "main:topic", cwd=clone)
    assert [update.ref for update in service.applied[-1]] == ["refs/heads/topic"]


async def test_a_protected_branch_takes_a_fast_forward(service: Service, git: Git, clone: Path) -> None:
    service.verdict = PROTECTED_MAIN
    head = await git.commit_file(clone, "second.txt")
    await git("push", "-q", cwd=clone)
    assert service.applied[-1][0].new == head


async def test_deletion_is_refused_when_protected_and_done_otherwise(
    service: Service, git: Git, clone: Path
) -> None:
    await git("push", "-q", "origin", "main:one", "main:two", cwd=clone)
    service.verdict = Verdict(fast_forward_only=frozenset({"refs/heads/one"}))
    refused = await git("push", "origin", ":one", cwd=clone, fails=True)
    assert "remote: You are not allowed to delete the protected refs/heads/one." in refused
    refused = await git("push", "origin", ":one", ":two", cwd=clone, fails=True)
    assert "(You are not allowed to delete the protected refs/heads/one.)" in refused
    assert [(u.kind, u.ref) for u in service.applied[-1]] == [("delete", "refs/heads/two")]
    assert "refs/heads/two" not in await git("ls-remote", service.url)


@pytest.mark.parametrize("ref", ["refs/merge-requests/1/head", "refs/keep-around/x"])
async def test_users_cannot_push_the_servers_own_refs(
    service: Service, git: Git, clone: Path, ref: str
) -> None:
    printed = await git("push", "origin", f"main:{ref}", cwd=clone, fails=True)
    assert f"remote: {ref} is kept by the server and cannot be pushed." in printed
    assert ref not in await git("ls-remote", service.url)


async def test_a_merge_requests_head_can_be_fetched_and_keep_around_is_hidden(
    service: Service, git: Git, clone: Path, repositories: Repositories
) -> None:
    head = await git("rev-parse", "HEAD", cwd=clone)
    repository = repositories.open(PROJECT)
    await set_internal_ref(repository, "refs/merge-requests/7/head", head)
    await set_internal_ref(repository, f"refs/keep-around/{head}", head)
    await git("fetch", "-q", service.url, "refs/merge-requests/7/head", cwd=clone)
    assert "keep-around" not in await git("ls-remote", service.url)


async def test_odd_names_travel_both_ways(service: Service, git: Git, clone: Path) -> None:
    """Slashes, a tag and a branch of one name, letters beyond ASCII; misleading names can still be deleted."""
    names = ["refs/heads/a/b/c", "refs/heads/v1", "refs/tags/v1", "refs/heads/größe"]
    await git("push", "-q", "origin", *(f"HEAD:{name}" for name in names), cwd=clone)
    listed = await git("-c", "core.quotePath=false", "ls-remote", service.url)
    assert {line.split("\t")[1] for line in listed.splitlines()} >= set(names)
    assert {update.ref for update in service.applied[-1]} == set(names)
    for ref in ("refs/heads/-rf", "refs/heads/HEAD", "refs/tags/refs/heads/main"):
        open_repository(service.repository).references.create(ref, await git("rev-parse", "HEAD", cwd=clone))
        await git("push", "-q", "origin", f":{ref}", cwd=clone)
        assert [update.ref for update in service.applied[-1]] == [ref]


@pytest.mark.parametrize("kind", ["heads", "tags"])
@pytest.mark.parametrize("name", ["HEAD", "-x", "refs/heads/main", "ab" * 20])
async def test_a_pushed_ref_cannot_be_named_like_something_else(
    service: Service, git: Git, clone: Path, kind: str, name: str
) -> None:
    printed = await git("push", "origin", f"HEAD:refs/{kind}/{name}", cwd=clone, fails=True)
    assert f"{name!r} is not a valid name for a branch or tag" in printed
    assert f"refs/{kind}/{name}" not in await git("ls-remote", "--refs", service.url)


async def test_push_options_reach_the_decision(service: Service, git: Git, clone: Path) -> None:
    await git.commit_file(clone, "second.txt")
    await git("push", "-q", "-o", "ci.skip", "-o", "why=because", cwd=clone)
    assert service.pushes[-1].options == ("ci.skip", "why=because")


async def test_a_gzipped_request_is_understood(service: Service, git: Git, clone: Path) -> None:
    """git compresses a fetch with many wants or haves."""
    for n in range(40):
        await git("commit", "-q", "--allow-empty", "-m", str(n), cwd=clone)
    await git("push", "-q", "origin", *(f"HEAD~{n}:refs/heads/b{n}" for n in range(40)), cwd=clone)
    await git("-c", "protocol.version=0", "clone", "-q", service.url, "again")
    assert "gzip" in service.encodings
    assert len((await git("branch", "-r", cwd=git.folder / "again")).splitlines()) == 42  # and HEAD


async def test_hooks_and_configuration_in_a_repository_folder_do_not_run(
    service: Service, git: Git, clone: Path, tmp_path: Path
) -> None:
    hook = service.repository / "hooks/pre-receive"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
    hook.chmod(0o755)
    await git.commit_file(clone, "second.txt")
    await git("push", "-q", cwd=clone)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
async def test_a_repository_of_another_owner_works(service: Service, git: Git, clone: Path) -> None:
    for path in (service.repository, *service.repository.rglob("*")):
        os.chown(path, 65534, 65534)
    head = await git.commit_file(clone, "second.txt")
    await git("push", "-q", cwd=clone)
    assert service.applied[-1][0].new == head
    await git("clone", "-q", service.url, "again")


async def test_what_a_push_did_is_known_later_although_the_branch_went_on(
    service: Service, git: Git, clone: Path
) -> None:
    await git.commit_file(clone, "second.txt")
    await git("push", "-q", cwd=clone)
    await git.commit_file(clone, "third.txt")
    await git("push", "-q", cwd=clone)
    earlier = service.pushes[-2]
    assert applied_updates(service.repository, earlier) == list(earlier.updates)
    never = Push(earlier.updates)
    assert applied_updates(service.repository, never) == []


async def test_a_client_that_goes_away_in_the_middle_of_a_push_leaves_no_process(
    service: Service, git: Git, clone: Path
) -> None:
    old = await git("rev-parse", "HEAD", cwd=clone)
    line = f"{old} {'12' * 20} refs/heads/main\0report-status"
    body = f"{len(line) + 4:04x}{line}0000".encode() + b"PACK\0\0\0\2\0\0\0\7"
    url = URL(service.url)
    _, connection = await asyncio.open_connection(url.host, url.port)
    heading = f"POST {url.path}/git-receive-pack HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    connection.write(heading.encode() + body)
    await until(lambda: _processes(service.repository))
    connection.close()
    await connection.wait_closed()
    await until(lambda: not _processes(service.repository))
    assert list((service.repository / "objects").glob("tmp_objdir*")) == []
    assert await git("ls-remote", "--heads", service.url) == f"{old}\trefs/heads/main"


async def test_a_client_that_goes_away_in_the_middle_of_a_clone_leaves_no_process(
    service: Service, git: Git, repositories: Repositories
) -> None:
    await commit(repositories, "main", None, large=os.urandom(20 * 1024 * 1024))
    client = await git.start("-c", "http.lowSpeedLimit=1", "clone", "-q", service.url, "again")
    await until(lambda: _processes(service.repository))
    client.kill()
    await client.wait()
    await until(lambda: not _processes(service.repository))


async def test_a_body_that_is_no_push_is_refused_before_git_starts(service: Service) -> None:
    async def body():
        yield b"0000garbage"[4:]

    with pytest.raises(MalformedPushError):
        await read_push(body())
    assert service.pushes == []


async def test_the_probe_before_a_large_push_asks_nobody(service: Service) -> None:
    async with aiohttp.ClientSession() as session:
        answer = await session.post(f"{service.url}/git-receive-pack", data=b"0000")
        assert (answer.status, await answer.read()) == (200, b"")
    assert service.pushes == []


def _processes(repository: Path) -> list[str]:
    """Return the command lines of running processes that name the repository, or run in it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            within = (folder / "cwd").readlink() == repository
        except OSError:
            continue
        if command.startswith("git") and (str(repository) in command or within):
            found.append(command)
    return found


def test_more_protected_refs_than_are_looked_through_are_refused_as_a_whole() -> None:
    updates = tuple(RefUpdate("1" * 40, "2" * 40, f"refs/heads/{n}") for n in range(1001))
    everything = Verdict(fast_forward_only=frozenset(update.ref for update in updates))
    refusal = "The push moves too many protected refs at once; push fewer."
    assert refusal_of(Push(updates), everything, {}) == refusal
    assert refusal_of(Push(updates[:1000]), everything, {}) is None


SHAS = st.text("0123456789abcdef", min_size=40, max_size=40)
REFS = st.from_regex(r"refs/(heads|tags)/[^\x00-\x20\x7f\ud800-\udfff]{1,40}", fullmatch=True)
UPDATES = st.lists(st.builds(RefUpdate, SHAS, SHAS, REFS), max_size=8)
OPTIONS = st.lists(st.from_regex(r"[a-z.=]{1,20}", fullmatch=True), max_size=3)


def request(updates: list[RefUpdate], options: list[str], shallow: list[str]) -> bytes:
    """Return a request's head as git writes it."""
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
    """This applies to the commands, and to the options after them."""
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
    """Run only the hook, outside of a repository, with `verdict`; return its exit status and its message."""
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
    """A server that dies may have written only a part of it."""
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


#: (refs of a push, those that are refused, the reports).
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
    """git itself refuses refs without a report."""
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
