"""A project with a large file."""

import pytest

from tests.api_server.code.lfs.client import CONTENT, LfsClient, Place
from tests.support.forge import Forge


@pytest.fixture
async def place(forge: Forge) -> Place:
    """A private project with one object."""
    alice = await forge.user("alice")
    project = await forge.project(alice)
    client = LfsClient.of(forge, project, alice)
    await client.bring(CONTENT)
    return Place(alice, project, client)
