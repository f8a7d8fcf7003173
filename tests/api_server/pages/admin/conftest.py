"""A service with a storage edge in front of it, and an administrator who has signed in."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import pytest

from api_server.outbound.edges import EDGES
from api_server.web.context import SERVICES
from common.serving import serving
from storage_edge import app
from storage_edge.app import served
from storage_edge.settings import Settings as EdgeSettings
from tests.support.browser import PASSWORD, Browser, browsing
from tests.support.forge import Forge, Person, running_forge
from tests.support.ports import free_port

STORAGE_TOKEN = "storage-token-of-the-tests"
PURGE_TOKEN = "purge-token-of-the-tests"


@attrs.frozen
class Scene:
    """The service, its edge's URL, and the administrator."""

    forge: Forge
    edge: str
    boss: Person


@contextlib.asynccontextmanager
async def running_edge(settings: dict[str, Any]) -> AsyncIterator[str]:
    """Run a storage edge; yield its URL."""
    chosen = EdgeSettings(**{"port": 0, "access_log": False} | settings)
    async with serving(served(app.create_app(chosen), chosen)) as (_, port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
async def scene(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    folder = tmp_path_factory.mktemp("admin")
    port = free_port()
    edge = f"http://127.0.0.1:{port}"
    told = {"edge_urls": [edge], "edge_purge_token": PURGE_TOKEN}
    async with running_forge(new_database(), folder / "service", **told) as forge:
        chosen = {
            "origin": forge.base,
            "storage_token": STORAGE_TOKEN,
            "purge_token": PURGE_TOKEN,
            "port": port,
        }
        async with running_edge(chosen):
            # A new edge is notified to delete everything. This must not happen later, in the middle of a test.
            await forge.server.app[SERVICES][EDGES].catch_up()
            yield Scene(forge, edge, await forge.user("boss", admin=True, password=PASSWORD))


@pytest.fixture(scope="module")
async def boss(scene: Scene) -> AsyncIterator[Browser]:
    """The administrator's browser."""
    async with browsing(scene.forge) as browser:
        await browser.sign_in(scene.boss)
        yield browser
