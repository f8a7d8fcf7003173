"""A source repository, a target repository, and the servers in front of the target."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from api_server.git.remote.ssh_keys import KeyPair, make_key_pair
from tests.api_server.mirrors.repositories import BareRepository
from tests.api_server.mirrors.targets import (
    PASSWORD,
    HttpTarget,
    SshTarget,
    serve_git,
    serve_http,
    serve_ssh,
)
from tests.support.forge import Forge, SharedForges


@pytest.fixture
def source(tmp_path: Path) -> BareRepository:
    return BareRepository.create(tmp_path / "source.git")


@pytest.fixture
def target(tmp_path: Path) -> BareRepository:
    """The target repository of mirrors: `/target.git` for HTTP and git, its full path for SSH."""
    (tmp_path / "served").mkdir()
    return BareRepository.create(tmp_path / "served" / "target.git")


@pytest.fixture
async def http_target(target: BareRepository) -> AsyncIterator[tuple[HttpTarget, str]]:
    """The server's switches and the URL of the target repository."""
    http = HttpTarget(target.path.parent)
    async with serve_http(http) as server:
        yield http, str(server.make_url("/target.git"))


@pytest.fixture
def git_url(target: BareRepository, tmp_path: Path) -> Iterator[str]:
    with serve_git(target.path.parent, tmp_path / "daemon.log") as port:
        yield f"git://127.0.0.1:{port}/target.git"


@pytest.fixture(scope="session")
def key_pair() -> KeyPair:
    return make_key_pair("mirror@forgelet.example.org")


@pytest.fixture(scope="module")
def ssh_by_key(tmp_path_factory: pytest.TempPathFactory, key_pair: KeyPair) -> Iterator[SshTarget]:
    with serve_ssh(tmp_path_factory.mktemp("by_key") / "ssh", authorized=key_pair.public) as server:
        if isinstance(server, str):
            pytest.skip(server)
        yield server


@pytest.fixture(scope="module")
def ssh_by_password(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshTarget]:
    with serve_ssh(tmp_path_factory.mktemp("by_password") / "ssh", password=PASSWORD) as server:
        if isinstance(server, str):
            pytest.skip(server)
        yield server


@pytest.fixture(scope="module")
async def working(shared_forge: SharedForges) -> Forge:
    """A server that updates mirrors and may send requests to loopback."""
    return await shared_forge(work=True, allow_local_requests=True)
