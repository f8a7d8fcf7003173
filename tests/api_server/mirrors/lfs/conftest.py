"""A target with an LFS server, and a mirrored project with large files."""

import pytest

from tests.api_server.mirrors.lfs.servers import LargeFiles, LfsServer
from tests.api_server.mirrors.service import with_credentials
from tests.api_server.mirrors.targets import Http
from tests.support.forge import Forge


@pytest.fixture
def server(http_target: Http) -> LfsServer:
    """The LFS server beside the target."""
    server = LfsServer()
    http_target[0].before = server.handle
    return server


@pytest.fixture
async def files(working: Forge, http_target: Http) -> LargeFiles:
    return await LargeFiles.create(working, with_credentials(http_target[1]))
