"""A server whose edge tells what it is told."""

from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.forge import Forge
from tests.support.purges import Told, forge_with_edge


@pytest.fixture(scope="module")
async def with_edge(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Forge, Told]]:
    async with forge_with_edge(new_database, tmp_path_factory.mktemp("with_edge")) as running:
        yield running
