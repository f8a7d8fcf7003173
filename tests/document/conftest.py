"""A service with an edge in front of it, and an edge in front of an origin that records requests, for all areas."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from common.serving import serving
from storage_edge.app import create_app, served
from storage_edge.settings import Settings
from tests.support.forge import Answer, Client, Forge, Person, running_forge
from tests.support.ports import free_port

from .gates import Gate, running_gate
from .pipelines import Ci, new_ci

STORAGE_TOKEN = "storage-token-of-the-document"


@asynccontextmanager
async def running_edge(origin: str, folder: Path, port: int | None = None) -> AsyncIterator[str]:
    """Run a storage edge in front of `origin`; yield its URL."""
    chosen = Settings(
        origin=origin,
        storage_token=STORAGE_TOKEN,
        purge_token="purge-token",
        data_dir=folder,
        port=port or free_port(),
    )
    async with serving(served(create_app(chosen), chosen)):
        yield f"http://127.0.0.1:{chosen.port}"


@attrs.frozen
class Stored:
    """A service whose administrator has set an external storage: an edge at `edge`."""

    forge: Forge
    edge: str
    alice: Person
    public: dict[str, Any]
    private: dict[str, Any]

    def path(self, project: dict[str, Any], rest: str = "/-/raw/main/README.md") -> str:
        return f"/{project['path_with_namespace']}{rest}"

    async def ask(self, path: str, client: Client | None = None, **options: Any) -> Answer:
        """Send a request to the service, at its repository-level paths."""
        return await (client or self.forge.anonymous).get(f"{self.forge.base}{path}", **options)


@pytest.fixture(scope="module")
async def stored(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stored]:
    folder, port = tmp_path_factory.mktemp("stored"), free_port()
    async with (
        running_forge(new_database(), folder / "service") as forge,
        running_edge(forge.base, folder / "edge", port) as edge,
    ):
        settings = {
            "static_objects_external_storage_url": edge,
            "static_objects_external_storage_auth_token": STORAGE_TOKEN,
        }
        assert (await forge.root.put("/application/settings", settings)).status == 200
        alice = await forge.user("alice")
        projects = [
            await forge.project(alice, visibility=visibility, initialize_with_readme=True)
            for visibility in ("public", "private")
        ]
        yield Stored(forge, edge, alice, *projects)


@attrs.define
class Origin:
    """An origin that answers everything, and records the requests."""

    url: str = ""
    edge: str = ""
    requests: list[web.Request] = attrs.field(factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        if "teapot" in request.path:
            return web.Response(status=418)
        headers = {"CDN-Cache-Control": "public, max-age=60", "ETag": '"1"'}
        if "cookie" in request.path:
            headers["Set-Cookie"] = "a=b"
        return web.Response(text="content", headers=headers)


@pytest.fixture(scope="module")
async def origin(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Origin]:
    origin, app = Origin(), web.Application()
    app.router.add_route("*", "/{path:.*}", origin.answer)
    async with TestServer(app) as server:
        origin.url = str(server.make_url("")).rstrip("/")
        async with running_edge(origin.url, tmp_path_factory.mktemp("edge")) as origin.edge:
            yield origin


@pytest.fixture(scope="package")
async def gate(
    passing_database: Callable[[], AbstractContextManager[str]], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gate]:
    with passing_database() as url:
        async with running_gate(url, tmp_path_factory.mktemp("gate")) as gate:
            yield gate


@pytest.fixture(scope="package")
async def ci(forge: Forge) -> Ci:
    return await new_ci(forge)
