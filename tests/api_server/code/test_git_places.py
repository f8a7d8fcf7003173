"""How many gits run for clients, and for how long: what silent and slow ones hold, and what the others are told."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from yarl import URL

from api_server.code.git_http_handlers import PLACES
from api_server.web.context import SERVICES
from tests.api_server.code.raw_push import (
    commands,
    credentials,
    packet,
    post,
    processes,
    until_git_runs,
    until_no_git_runs,
)
from tests.support.forge import Forge, Person
from tests.support.git_client import Git, git_url, push_files
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
        """The request of a whole clone."""
        return packet(f"want {self.head}\n".encode()) + b"00000009done\n"

    async def begin(self, service: str, length: int, body: bytes, token: str = "") -> asyncio.StreamWriter:
        """A connection that sends this and then is silent, and reads nothing."""
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
        """Ends what was begun."""
        while self.clients:
            self.clients.pop().close()


@pytest.fixture
async def serve(new_forge: Callable[..., Any], tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """`await serve(**settings)`: the project on a server of its own."""
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
    """A stranger's do not take those of users."""
    served = await serve(git_processes_each=2, git_queue_timeout=0)
    wanted, strangers = served.wanted(), served.forge.server.app[SERVICES][PLACES]._strangers
    for _ in range(2):
        await served.begin("git-upload-pack", len(wanted), wanted)
    await until(lambda: strangers.held == 2)
    sentence = "The server has too many git requests of yours or for this project at the moment, try again in a minute."
    url = git_url(served.forge, served.path)
    async with served.forge.session.get(f"{url}/info/refs?service=git-upload-pack") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "30")
        assert await answer.text() == sentence + "\n"
    told = await Git(tmp_path)("clone", url, "copy", fails=True)
    assert f"remote: {sentence}" in told
    assert "The requested URL returned error: 429" in told
    hers = f"http.extraHeader=Authorization: {credentials(served.alice.token)}"  # git sends none of its own accord
    await Git(tmp_path)("-c", hers, "clone", "--quiet", url, "hers")
    served.close()
    await until(lambda: strangers.held == 0)
    assert processes(served.repository) == []
    await Git(tmp_path)("clone", "--quiet", url, "copy")


async def test_who_waits_for_a_place_gets_it_when_it_is_free(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    served = await serve(git_processes_each=1, git_queue_timeout=60)
    wanted, strangers = served.wanted(), served.forge.server.app[SERVICES][PLACES]._strangers
    await served.begin("git-upload-pack", len(wanted), wanted)
    await until(lambda: strangers.held == 1)
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
