"""`forgelet worker`: the background work alone, beside a server that does none."""

from typing import Any

import attrs

from api_server.app import create_app, endpoint
from common.serving import working
from tests.support.ci import eventually
from tests.support.forge import Forge
from tests.support.ports import free_port


async def test_a_worker_does_what_a_server_without_work_has_queued(new_forge: Any) -> None:
    async with new_forge(work=False) as forge:
        project = await forge.project(initialize_with_readme=True)
        assert (await forge.root.delete(f"/projects/{project['id']}")).status == 202
        folder = forge.settings.data_dir / "repositories"
        assert list(folder.rglob("HEAD"))
        settings = attrs.evolve(forge.settings, work=True, operations_port=free_port())
        async with working(endpoint(settings), create_app(settings)):

            async def is_removed() -> bool:
                return not list(folder.rglob("HEAD"))

            await eventually(is_removed)
            assert await readiness(forge, settings.operations_port) == "ok"


async def readiness(forge: Forge, port: int) -> Any:
    async with forge.session.get(f"http://127.0.0.1:{port}/-/readiness") as answer:
        return (await answer.json())["background"]["status"]
