"""A server for tests."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager

import pytest

from tests.support.forge import Forge, running_forge


@pytest.fixture(scope="package")
async def testing_forge(
    passing_database: Callable[[], AbstractContextManager[str]], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    """A testing server that tests share if users and paths keep them apart."""
    folder = tmp_path_factory.mktemp("testing_forge")
    with passing_database() as url:
        async with running_forge(url, folder, testing=True, allow_local_requests=True) as forge:
            yield forge
