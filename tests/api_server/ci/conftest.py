"""A project that the tests of a module share."""

import pytest

from tests.support.ci import CiProject, ci_project
from tests.support.forge import Forge


@pytest.fixture(scope="module")
async def project(forge: Forge) -> CiProject:
    return await ci_project(forge)
