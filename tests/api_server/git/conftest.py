"""A tiny HTTP app with the git layer, a git client without configuration, and small repositories."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from api_server.git import new_commits, ref_moves, smart_http
from api_server.git.commits import Person
from api_server.git.new_commits import FileAction, NewCommit
from api_server.git.receive_pack import read_push, receive_pack
from api_server.git.received_push import Push, RefUpdate, Verdict, applied_updates
from api_server.git.ref_names import BRANCHES, NO_COMMIT
from api_server.git.repositories import Repositories, Repository
from tests.support.git_client import Git

PROJECT = 4711
ALICE = Person("Alice", "alice@example.org", 1_700_000_000, 120)


def new_commit(message: str = "Change files") -> NewCommit:
    return NewCommit(message, ALICE, ALICE)


async def commit(repositories: Repositories, branch: str, expected: str | None, **files: bytes) -> str:
    """Create one commit with `files` (name=content); return its SHA."""
    actions = [FileAction("create", name, content) for name, content in files.items()]
    return await commit_files(repositories.open(PROJECT), branch, actions, new_commit(), expected)


async def commit_files(
    repository: Repository, branch: str, actions: list[FileAction], made: NewCommit, expected: str | None
) -> str:
    """Create one commit, and move the branch to it; return its SHA."""
    sha = await new_commits.commit_files(repository, actions, made, expected)
    await move_branch(repository, branch, sha, expected)
    return sha


async def move_branch(
    repository: Repository, name: str, new: str | None, expected: str | None = None
) -> None:
    """Move the branch; None stands for a branch that does not exist."""
    update = RefUpdate(expected or NO_COMMIT, new or NO_COMMIT, BRANCHES + name)
    await ref_moves.apply_push(Path(repository.path), Push((update,)))


@attrs.define
class Service:
    """The app that receives pushes: its answer to them (`verdict`), and records of what it has received."""

    repository: Path
    url: str = ""
    verdict: Verdict = attrs.Factory(Verdict)
    pushes: list[Push] = attrs.Factory(list)
    applied: list[list[RefUpdate]] = attrs.Factory(list)
    encodings: list[str | None] = attrs.Factory(list)

    @asynccontextmanager
    async def judge(self, push: Push, _arrived: Path | None) -> AsyncIterator[Verdict]:
        self.pushes.append(push)
        try:
            yield self.verdict
        finally:
            self.applied.append(applied_updates(self.repository, push))

    async def info_refs(self, request: web.Request) -> web.StreamResponse:
        service: smart_http.Service = request.query["service"]  # type: ignore[assignment]
        protocol = request.headers.get("Git-Protocol")
        async with smart_http.info_refs(self.repository, service, protocol) as chunks:
            return await _answer(request, chunks, smart_http.content_type(service, "advertisement"))

    async def upload_pack(self, request: web.Request) -> web.StreamResponse:
        self.encodings.append(request.headers.get("Content-Encoding"))
        protocol = request.headers.get("Git-Protocol")
        async with smart_http.upload_pack(self.repository, request.content.iter_any(), protocol) as chunks:
            return await _answer(request, chunks, smart_http.content_type("git-upload-pack", "result"))

    async def receive_pack(self, request: web.Request) -> web.StreamResponse:
        pushed = await read_push(request.content.iter_any())
        async with receive_pack(self.repository, pushed, self.judge) as chunks:
            return await _answer(request, chunks, smart_http.content_type("git-receive-pack", "result"))


async def _answer(
    request: web.Request, chunks: AsyncIterator[bytes], content_type: str
) -> web.StreamResponse:
    """Stream the answer. aiohttp sends its end once the service has seen the outcome of a push."""
    response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache"})
    await response.prepare(request)
    async for chunk in chunks:
        await response.write(chunk)
    return response


@pytest.fixture
async def repositories(tmp_path: Path) -> Repositories:
    repositories = Repositories(tmp_path / "repositories")
    await repositories.create(PROJECT)
    return repositories


@pytest.fixture
def git(tmp_path: Path) -> Git:
    folder = tmp_path / "client"
    folder.mkdir()
    return Git(folder)


@pytest.fixture
async def service(repositories: Repositories) -> AsyncIterator[Service]:
    service = Service(repositories.path(PROJECT))
    app = web.Application()
    app.add_routes(
        [
            web.get("/app.git/info/refs", service.info_refs),
            web.post("/app.git/git-upload-pack", service.upload_pack),
            web.post("/app.git/git-receive-pack", service.receive_pack),
        ]
    )
    async with TestServer(app) as server:
        service.url = str(server.make_url("/app.git"))
        yield service


@pytest.fixture
async def clone(service: Service, git: Git) -> Path:
    """A clone with one commit on `main`, pushed."""
    clone = git.folder / "clone"
    await git("clone", "-q", service.url, str(clone))
    await git.commit_file(clone, "readme.txt")
    await git("push", "-q", "origin", "main", cwd=clone)
    return clone
