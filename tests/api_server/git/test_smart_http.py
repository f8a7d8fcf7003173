"""Real git clients against the smart HTTP layer."""

import asyncio
import os
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from api_server.git.receive_pack import read_push
from api_server.git.received_push import (
    MalformedPushError,
    Push,
    RefUpdate,
    Verdict,
    applied_updates,
    refusal_of,
)
from api_server.git.ref_moves import set_internal_ref
from api_server.git.repositories import Repositories, open_repository
from tests.api_server.git.conftest import PROJECT, Service, commit
from tests.support.git_client import Git
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
    """Slashes, a tag and a branch of one name, letters beyond ASCII; what is misleading can still be removed."""
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
    """Command lines of running processes that name the repository, or run within it."""
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
