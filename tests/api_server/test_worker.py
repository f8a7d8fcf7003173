"""`forgelet worker`: the background work alone, beside a server that does none."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import attrs
import pytest

from api_server.app import create_app, endpoint
from api_server.operations.watch import WATCH
from api_server.settings import Settings
from api_server.web.context import SERVICES
from common import operations
from common.serving import working
from tests.api_server.status_checks.receiver import answer, running_receiver
from tests.support.ci import eventually
from tests.support.forge import Forge
from tests.support.logs import lines_of_this_test
from tests.support.merge_requests import new_project, open_merge_request
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


LONG_ENOUGH = 3.0
#: Once an hour and once a day something is kept in the log: that is what it is for.
HOURLY, TOLD = "head of the audit trail", {"keep_audit_head", "sweep_objects"}
UNDER_WAY = """
    SELECT (SELECT count(*) FROM procrastinate_jobs)
        + (SELECT count(*) FROM status_check_deliveries WHERE status = 'queued')
        + (SELECT count(*) FROM remote_mirrors WHERE update_status = 'started')
"""


async def furnish(forge: Forge) -> None:
    """A project with a merge request, a status check that has been told of it, and a mirror that cannot be reached."""
    alice = await forge.user("alice")
    project = await new_project(forge, alice)
    url = f"/projects/{project['id']}"
    async with running_receiver() as receiver:
        receiver.answers = [answer(204)]
        check = {"name": "QA", "external_url": receiver.url}
        assert (await alice.api.post(f"{url}/external_status_checks", check)).status == 201
        mirror = {"url": "http://127.0.0.1:9/mirror.git", "enabled": False}
        assert (await alice.api.post(f"{url}/remote_mirrors", mirror)).status == 201
        await open_merge_request(alice, project)
        await until_nothing_is_under_way(forge)


async def until_nothing_is_under_way(forge: Forge) -> None:
    async with asyncio.timeout(20):
        while await forge.database.value(UNDER_WAY):
            await asyncio.sleep(0.1)


async def test_a_server_that_nobody_calls_writes_nothing(new_forge: Any) -> None:
    async with new_forge(work=True, allow_local_requests=True) as forge:
        await furnish(forge)
        before = -1
        async with asyncio.timeout(60):  # what has been sent is recorded
            while forge.database.generation != before:
                before = forge.database.generation
                await asyncio.sleep(1)
        await asyncio.sleep(LONG_ENOUGH)
        assert forge.database.generation == before


async def test_a_server_that_nobody_calls_says_nothing(
    new_forge: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor do those who ask how it is, while it is well."""
    with lines_of_this_test() as lines:
        async with new_forge(work=True, allow_local_requests=True, disk_reserve=0) as forge:
            lines.clear()  # of the start
            caplog.set_level(logging.INFO)
            periodic = forge.server.app[SERVICES].queue._app.periodic_registry.periodic_tasks
            for entry in periodic.values():
                if entry.task.name not in TOLD:
                    await entry.task.func(timestamp=0)
            await forge.server.app[SERVICES][WATCH].look()
            for path in operations.ROUTES:
                assert (await forge.anonymous.get(f"{forge.base}{path}")).status == 200
        said = [line["event"] for line in lines if line["log_level"] != "debug"]
        assert [event for event in said if event != HOURLY] == []
        ours = [record for record in caplog.records if not record.name.startswith("aiohttp.access")]
        assert [record for record in ours if record.levelno > logging.DEBUG] == []


async def test_periodic_tasks_that_find_nothing_to_do_write_nothing(new_forge: Any) -> None:
    async with new_forge(status_check_timeout=60) as forge:
        periodic = forge.server.app[SERVICES].queue._app.periodic_registry.periodic_tasks
        tasks = {entry.task.name: entry.task for entry in periodic.values()}
        assert len(tasks) > 10
        for name, task in tasks.items():
            before = forge.database.generation
            await task.func(timestamp=0)
            assert forge.database.generation == before, name
