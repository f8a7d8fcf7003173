"""A server whose edge tells what it is told, and a project and a group with access tokens."""

import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from api_server.web.routes import Role
from tests.api_server.namespaces.scene import Scene
from tests.support.forge import Forge
from tests.support.purges import Told, forge_with_edge


@pytest.fixture(scope="session")
async def with_edge(
    passing_database: Callable[[], contextlib.AbstractContextManager[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Forge, Told]]:
    with passing_database() as url:
        async with forge_with_edge(lambda: url, tmp_path_factory.mktemp("with_edge")) as running:
            yield running


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    owner, maintainer, developer = [await forge.user(name) for name in ("owner", "maintainer", "developer")]
    group = await forge.group(owner, visibility="private")
    project = await forge.project(namespace_id=group["id"])
    await forge.member("groups", group["id"], maintainer, Role.MAINTAINER)
    await forge.member("groups", group["id"], developer, Role.DEVELOPER)
    return Scene(forge, group, project, owner, maintainer, developer)
