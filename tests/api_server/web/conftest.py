"""A server that a test module may change for good."""

from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.forge import Forge, running_forge


@pytest.fixture(scope="module")
async def own_forge(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    async with running_forge(new_database(), tmp_path_factory.mktemp("own_forge")) as running:
        yield running
