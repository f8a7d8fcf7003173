"""A project for tests of identity tokens."""

import pytest

from tests.support.ci import CiProject, ci_project
from tests.support.forge import Forge


@pytest.fixture
async def project(forge: Forge) -> CiProject:
    return await ci_project(forge)
