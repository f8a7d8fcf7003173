"""Alice, and a project of hers with one commit on `main`."""

from typing import Any

import pytest

from tests.support.forge import Forge, Person
from tests.support.merge_requests import new_project


@pytest.fixture
async def alice(forge: Forge) -> Person:
    return await forge.user("alice")


@pytest.fixture
async def project(forge: Forge, alice: Person) -> dict[str, Any]:
    return await new_project(forge, alice)
