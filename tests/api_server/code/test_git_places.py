"""The number and duration of git processes for clients, and the costs that one push may cause."""

import asyncio
import contextlib
import os
import re
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from cachetools import TTLCache
from yarl import URL

from api_server.code import entities, refs
from api_server.code.git_http_handlers import GIT_SLOTS
from api_server.code.quotas import MEASURED_FOR_SECONDS, QUOTAS, human_size
from api_server.git.received_push import Push, RefUpdate
from api_server.web.context import SERVICES
from tests.api_server.code.lfs.client import LfsClient, named, oid_of
from tests.support.forge import Forge, Person, SharedForges
from tests.support.git_client import Git, git_url, push_files
from tests.support.raw_push import (
    NO_COMMIT,
    commands,
    credentials,
    growing_pack,
    packet,
    post,
    processes,
    send_push,
    until_git_runs,
    until_no_git_runs,
)
from tests.support.waiting import until

MIB = 2**20


@attrs.frozen
class Served:
    """A public project with one commit of 10 MB, which is more than the buffers between two processes hold."""

    forge: Forge
    alice: Person
    project: dict[str, Any]
    head: str
    clients: list[asyncio.StreamWriter] = attrs.Factory(list)

    @property
    def path(self) -> str:
        return str(self.project["path_with_namespace"])

    @property
    def repository(self) -> Path:
        return self.forge.repository_path(self.project["id"])

    def wanted(self) -> bytes:
        """Return the request for a whole clone."""
        return packet(f"want {self.head}\n".encode()) + b"00000009done\n"

    async def begin(self, service: str, length: int, body: bytes, token: str = "") -> asyncio.StreamWriter:
        """Open a connection that sends this, and then neither sends nor reads anything."""
        url = URL(self.forge.base)
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, (url.host, url.port))
        reader, writer = await asyncio.open_connection(sock=made, limit=1024)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        lines = [f"POST /{self.path}.git/{service} HTTP/1.1", "Host: x", f"Content-Length: {length}"]
        if token:
            lines.append(f"Authorization: {credentials(token)}")
        writer.write("".join(f"{line}\r\n" for line in [*lines, ""]).encode() + body)
        await writer.drain()
        self.clients.append(writer)
        return writer

    def close(self) -> None:
        """Close the opened connections."""
        while self.clients:
            self.clients.pop().close()


@pytest.fixture
async def serve(new_forge: Callable[..., Any], tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """A function that creates the project on a server of its own: `await serve(**settings)`."""
    async with contextlib.AsyncExitStack() as stack:

        async def served(**settings: Any) -> Served:
            forge = await stack.enter_async_context(new_forge(**settings))
            alice = await forge.user("alice")
            project = await forge.project(alice, visibility="public")
            git = Git(tmp_path / "work")
            await git.init()
            await git("config", "core.compression", "0")
            head = await git.commit_files({"large": os.urandom(10 * MIB)})
            await git("push", "--quiet", git_url(forge, project["path_with_namespace"], alice), "main")
            made = Served(forge, alice, project, head)
            stack.callback(made.close)
            return made

        yield served


async def test_silent_clients_hold_no_gits(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice, visibility="public")
    head = await push_files(forge, tmp_path / "work", project, alice, {"a": "1"})
    served = Served(forge, alice, project, head)
    wanted = served.wanted()
    for _ in range(20):
        await served.begin("git-upload-pack", len(wanted), wanted[:-1])
        await served.begin("git-upload-pack", 1000, b"")
    await Git(tmp_path)("clone", "--quiet", "--bare", git_url(forge, served.path), "copy")
    assert processes(served.repository) == []
    served.close()


async def test_a_client_that_does_not_take_its_answer_is_cut_off(serve: Callable[..., Any]) -> None:
    served = await serve(send_timeout=1)
    wanted = served.wanted()
    await served.begin("git-upload-pack", len(wanted), wanted)
    await until_git_runs(served.repository)
    await until_no_git_runs(served.repository)


async def test_a_client_that_stops_in_the_middle_of_a_push_is_cut_off(serve: Callable[..., Any]) -> None:
    served = await serve(body_timeout=1)
    head = commands((served.head, "1" * 40, "refs/heads/main"))
    await served.begin("git-receive-pack", 1000, head + b"PACK", served.alice.token)
    await until_git_runs(served.repository)
    await until_no_git_runs(served.repository)
    assert list((served.repository / "objects").glob("tmp_objdir*")) == []


async def test_who_has_as_many_gits_as_there_are_for_one_is_told_to_come_again(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    """Requests of anonymous callers do not use up those of users."""
    served = await serve(git_processes_each=2, git_queue_timeout=0)
    wanted, strangers = served.wanted(), served.forge.server.app[SERVICES][GIT_SLOTS]._anonymous
    for _ in range(2):
        await served.begin("git-upload-pack", len(wanted), wanted)
    await until(lambda: strangers.in_use == 2)
    sentence = "The server has too many git requests of yours or for this project at the moment, try again in a minute."
    url = git_url(served.forge, served.path)
    async with served.forge.session.get(f"{url}/info/refs?service=git-upload-pack") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "30")
        assert await answer.text() == sentence + "\n"
    told = await Git(tmp_path)("clone", url, "copy", fails=True)
    assert f"remote: {sentence}" in told
    assert "The requested URL returned error: 429" in told
    hers = f"http.extraHeader=Authorization: {credentials(served.alice.token)}"  # git sends credentials only when asked
    await Git(tmp_path)("-c", hers, "clone", "--quiet", url, "hers")
    served.close()
    await until(lambda: strangers.in_use == 0)
    assert processes(served.repository) == []
    await Git(tmp_path)("clone", "--quiet", url, "copy")


async def test_who_waits_for_a_place_gets_it_when_it_is_free(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    served = await serve(git_processes_each=1, git_queue_timeout=60)
    wanted, strangers = served.wanted(), served.forge.server.app[SERVICES][GIT_SLOTS]._anonymous
    await served.begin("git-upload-pack", len(wanted), wanted)
    await until(lambda: strangers.in_use == 1)
    cloning = asyncio.create_task(
        Git(tmp_path)("clone", "--quiet", git_url(served.forge, served.path), "copy")
    )
    await until(lambda: strangers._waiting)
    served.close()
    await cloning


NOT_A_REQUEST = "The request is not one of git's smart protocol.\n"
BROKEN = {
    "no packets": (b"garbage", {}, 400, NOT_A_REQUEST),
    "cut in a packet": (b"0032want ", {}, 400, NOT_A_REQUEST),
    "an impossible length": (b"ffff", {}, 400, NOT_A_REQUEST),
    "an unknown command": (b"0014command=nonsens\n0000", {"Git-Protocol": "version=2"}, 400, NOT_A_REQUEST),
    "a lone flush": (b"0000", {}, 200, ""),
    "not gzip": (
        b"0000",
        {"Content-Encoding": "gzip"},
        400,
        "The body is not valid gzip.\n",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_broken_requests_are_the_clients_fault(forge: Forge, what: str) -> None:
    body, headers, status, text = BROKEN[what]
    alice = await forge.user("alice")
    project = await forge.project(alice)
    told = await post(forge, project["path_with_namespace"], alice, "git-upload-pack", body, **headers)
    assert (told.status, told.text) == (status, text)


BROKEN_PUSHES = {
    "no packets": (b"garbage", "A packet has no length.\n"),
    "a packet of nothing": (b"0004", "A packet has an impossible length.\n"),
    "nothing": (b"", "The request ended before its first flush packet.\n"),
    "no update": (packet(b"hello") + b"0000", "A line is no ref update.\n"),
    "more refs than one push may move": (
        commands(*[("1" * 40, "2" * 40, f"refs/heads/{n}") for n in range(5_001)]),
        "The push updates too many refs at once; push fewer.\n",
    ),
}


@pytest.mark.parametrize("what", BROKEN_PUSHES)
async def test_broken_pushes_are_the_clients_fault(forge: Forge, what: str) -> None:
    body, text = BROKEN_PUSHES[what]
    alice = await forge.user("alice")
    project = await forge.project(alice)
    told = await post(forge, project["path_with_namespace"], alice, "git-receive-pack", body)
    assert (told.status, told.text) == (400, text)


async def test_a_small_pack_that_means_gigabytes_costs_git_its_limit_at_most(
    forge: Forge, tmp_path: Path
) -> None:
    """The pack has 221 bytes; without limits git grows to 1.6 GB."""
    alice = await forge.user("alice")
    project = await forge.project(alice)
    head = await push_files(forge, tmp_path / "work", project, alice, {"a": "1"})
    pack = growing_pack([60_000, 960_000, 15_360_000, 160_000_000, 1_500_000_000])
    assert len(pack) < 300
    path = project["path_with_namespace"]
    told = await send_push(forge, path, alice, commands((NO_COMMIT, head, "refs/heads/x")) + pack)
    assert "Out of memory, malloc failed (tried to allocate 1500000001 bytes)" in told.text
    assert "ng refs/heads/x unpacker error" in told.text
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # a child that begins by vfork(2) has this too
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < max(700 * MIB, own * 1024 + MIB)
    repository: Path = forge.repository_path(project["id"])
    assert list((repository / "objects").glob("tmp_objdir*")) == []


async def test_a_push_larger_than_the_operator_allows_is_refused_in_gits_words(
    forge: Forge, tmp_path: Path
) -> None:
    with forge.changed_settings(push_limit=MIB):
        alice = await forge.user("alice")
        project = await forge.project(alice)
        git = Git(tmp_path / "work")
        await git.init()
        await git.commit_files({"large": os.urandom(2 * MIB)})
        url = git_url(forge, project["path_with_namespace"], alice)
        printed = await git("push", url, "main", fails=True)
        assert "remote: fatal: pack exceeds maximum allowed size" in printed
        assert await git("ls-remote", url) == ""


async def test_a_project_does_not_grow_beyond_its_quota(shared_forge: SharedForges, tmp_path: Path) -> None:
    """Arriving data counts before it is accepted; deletions are possible however full the project is."""
    forge = await shared_forge(repository_size_limit=3 * MIB)
    alice = await forge.user("alice")
    project = await forge.project(alice)
    git, url = Git(tmp_path / "work"), git_url(forge, project["path_with_namespace"], alice)
    await git.init()
    await git.commit_files({"one": os.urandom(2 * MIB)})
    await git("push", "--quiet", url, "main", "main:x")
    await git.commit_files({"two": os.urandom(2 * MIB)})
    told = await git("push", url, "main", fails=True)
    sentence = (
        "Your push to this repository would cause it to exceed the size limit of 3 MiB so it has been rejected. "
        "Please contact your administrator for more information."
    )
    assert f"remote: {sentence}" in told
    await git("push", "--quiet", url, ":x")
    client = LfsClient.of(forge, project, alice)
    content = b"x" * MIB
    asked = await client.batch("upload", named(content))
    assert (asked.status, asked.body) == (507, {"message": sentence})
    sent = await client.request("PUT", f"/objects/{oid_of(content)}/{len(content)}", data=content)
    assert (sent.status, sent.body) == (507, {"message": sentence})
    await client.bring(b"y" * (MIB // 2))
    assert (await client.batch("upload", named(b"y" * (MIB // 2)))).status == 200


async def test_commits_of_the_api_count_as_pushes_do(shared_forge: SharedForges) -> None:
    forge = await shared_forge(repository_size_limit=MIB)
    alice = await forge.user("alice")
    files = f"/projects/{(await forge.project(alice))['id']}/repository/files"
    change = {"branch": "main", "commit_message": "Add", "content": "x" * (MIB // 10 * 6)}
    assert (await alice.api.post(f"{files}/one", change)).status == 201
    refused = await alice.api.post(f"{files}/two", change)
    sentence = (
        "Your changes could not be committed, because this repository would exceed its size limit of 1 MiB"
    )
    assert (refused.status, refused.body) == (400, {"message": sentence})
    removal = {"branch": "main", "commit_message": "Remove"}
    assert (await alice.api.request("DELETE", f"{files}/one", json=removal)).status == 204


async def test_what_a_repository_takes_up_is_measured_again_however_often_it_is_written(
    shared_forge: SharedForges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits count with the size in which they were sent, and git packs them later."""
    forge = await shared_forge(repository_size_limit=MIB)
    now = 0.0
    measured = TTLCache(maxsize=10, ttl=MEASURED_FOR_SECONDS, timer=lambda: now)
    monkeypatch.setattr(forge.server.app[SERVICES][QUOTAS], "_measured", measured)
    alice = await forge.user("alice")
    files = f"/projects/{(await forge.project(alice))['id']}/repository/files"
    change = {"branch": "main", "commit_message": "Add", "content": "x" * (MIB // 10 * 4)}
    for name in ("one", "two", "three"):
        assert (await alice.api.post(f"{files}/{name}", change)).status == 201
        now += MEASURED_FOR_SECONDS * 0.6


async def test_lfs_objects_that_arrive_at_once_do_not_find_the_same_room(
    shared_forge: SharedForges, tmp_path: Path
) -> None:
    forge = await shared_forge(repository_size_limit=3 * MIB)
    alice = await forge.user("alice")
    client = LfsClient.of(forge, await forge.project(alice), alice)
    content, begun, rest = b"x" * (2 * MIB), asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield content[:MIB]
        begun.set()
        await rest.wait()
        yield content[MIB:]

    first = asyncio.create_task(
        client.request("PUT", f"/objects/{oid_of(content)}/{len(content)}", data=slowly())
    )
    await begun.wait()
    quotas = forge.server.app[SERVICES][QUOTAS]
    await until(lambda: sum(quotas._arriving.values()) == len(content))
    other = b"y" * (2 * MIB)
    assert (await client.batch("upload", named(other))).status == 507
    rest.set()
    assert (await first).status == 200
    assert sum(quotas._arriving.values()) == 0


def test_sizes_are_written_as_gitlab_writes_them() -> None:
    written = [human_size(size) for size in (1, 10 * 2**30, 1.5 * MIB, 1023, 2**50)]
    assert written == ["1 Bytes", "10 GiB", "1.5 MiB", "1023 Bytes", "1024 TiB"]


async def test_what_settling_a_push_costs_grows_no_faster_than_its_refs(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice, initialize_with_readme=True)
    app = forge.server.app

    async def cost(count: int) -> float:
        """Return the lowest processor time of three for settling a push whose refs are deleted, as it wanted."""
        taken = []
        for _ in range(3):
            push = Push(tuple(RefUpdate("1" * 40, NO_COMMIT, f"refs/heads/{n}") for n in range(count)))
            await refs.propose(app[SERVICES], project["id"], alice.id, push)
            begun = time.thread_time()
            await refs.settle_push(app[SERVICES], project["id"], push)
            taken.append(time.thread_time() - begun)
        return min(taken)

    few, many = await cost(500), await cost(4000)
    assert many < 24 * few, (few, many)  # quadratic time would be 64 times as much


@pytest.mark.parametrize("kind", ["commit", "tag", "tree"])
async def test_what_is_read_whole_is_not_taken_when_it_is_large(
    forge: Forge, tmp_path: Path, kind: str
) -> None:
    """A message of megabytes is a pack of kilobytes, and every reader of the history would hold it in memory."""
    alice = await forge.user("alice")
    project = await forge.project(alice)
    git, url = Git(tmp_path / "work"), git_url(forge, project["path_with_namespace"], alice)
    await git.init()
    await git.commit_files({"a": "1"})
    await git("push", "--quiet", url, "main")
    (tmp_path / "message").write_text("a\n" * 500_000)
    match kind:
        case "commit":
            await git("commit", "--quiet", "--allow-empty", "--file", str(tmp_path / "message"))
        case "tag":
            await git("tag", "--annotate", "v1", "--file", str(tmp_path / "message"))
        case "tree":
            blob = await git("rev-parse", "main:a")
            entries = "".join(f"100644 blob {blob}\t{'a' * 200}{number:06}\n" for number in range(45_000))
            (tmp_path / "entries").write_text(entries)
            tree = await git("-c", f"alias.made=!git mktree <'{tmp_path}/entries'", "made")
            commit = await git("commit-tree", tree, "-p", "main", "-m", "a")
            await git("update-ref", "refs/heads/main", commit)
    told = await git("push", url, "main", "--tags", fails=True)
    assert re.search(rf"remote: The {kind} [0-9a-f]{{40}} has \d+ bytes; 10+ are allowed\.", told)
    assert "v1" not in await git("ls-remote", url)


async def test_a_list_of_commits_with_long_messages_is_bounded(forge: Forge, tmp_path: Path) -> None:
    """No step of the event loop is long either, which the watchdog checks."""
    alice = await forge.user("alice")
    project = await forge.project(alice)
    git, url = Git(tmp_path / "work"), git_url(forge, project["path_with_namespace"], alice)
    await git.init()
    (tmp_path / "message").write_text("a\n" * 350_000)
    author = f"--author={'n' * 100_000} <a@example.org>"
    for _ in range(40):
        await git("commit", author, "--quiet", "--allow-empty", "--file", str(tmp_path / "message"))
    await git("tag", "--annotate", "v1", "--file", str(tmp_path / "message"))
    await git("push", "--quiet", url, "main", "v1")
    project_url = f"/projects/{project['id']}"
    repository = f"{project_url}/repository"
    first, last = await git("rev-parse", "main~39"), await git("rev-parse", "main")
    release = {"tag_name": "v1", "description": "First"}
    await alice.api.post(f"{project_url}/releases", release, expect=201)
    for path in ("commits?per_page=40", "branches", "tags", f"compare?from={first}&to={last}", "releases"):
        where = f"{project_url}/{path}" if path == "releases" else f"{repository}/{path}"
        answer = await alice.api.get(where, expect=200)
        commits = answer.body["commits"] if isinstance(answer.body, dict) else answer.body
        for commit in (each.get("commit", each) for each in commits):
            assert len(commit["message"]) == 16 * 1024, path
            assert commit["author_name"] == "n" * 255, path
    for number, characters in ((100, 16 * 1024), (1000, 1638)):
        listed = await entities.commit_list(forge.repository(project["id"]), [last] * number, "")
        assert {len(commit["message"]) for commit in listed} == {characters}
    answer = await alice.api.get(f"{repository}/commits/{last}")
    assert len(answer.body["message"]) == 700_000
