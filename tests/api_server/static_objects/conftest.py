"""A public and a private project with files of all kinds."""

import pytest

from tests.api_server.static_objects.places import Place, new_place
from tests.support.forge import Forge


@pytest.fixture(scope="module")
async def public(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return await new_place(forge, tmp_path_factory.mktemp("public"), "public")


@pytest.fixture(scope="module")
async def private(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return await new_place(forge, tmp_path_factory.mktemp("private"), "private")
