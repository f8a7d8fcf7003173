"""`forgelet worker`: the background work alone, beside a server that does none."""

from pathlib import Path
from typing import Any

import attrs

from api_server.app import create_app, endpoint
from api_server.settings import Settings
from api_server.web.context import SERVICES
from common.serving import working
from tests.support.ci import eventually
from tests.support.forge import Forge
from tests.support.ports import free_port


async def test_a_worker_does_what_a_server_without_work_has_queued(new_forge: Any) -> None:
    async with new_forge() as forge:
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


def test_a_worker_can_do_what_a_server_with_other_settings_has_queued(tmp_path: Path) -> None:
    """A task that it did not know, it would mark as failed for good."""

    (tmp_path / "secret_key").write_text("ab" * 32)

    def tasks(**settings: Any) -> set[str]:
        chosen = Settings(database_url="postgresql:///none", data_dir=tmp_path, **settings)
        return set(create_app(chosen)[SERVICES].queue.names)

    assert tasks() == tasks(edge_urls=["http://127.0.0.1:1"], status_check_timeout=60)
