"""A server with nothing to do writes nothing: each commit that changes something voids all that requests remember."""

import asyncio
from typing import Any

from api_server.state.queue import QUEUE
from tests.api_server.status_checks.receiver import answer, running_receiver
from tests.support.forge import Forge
from tests.support.merge_requests import new_project, open_merge_request

LONG_ENOUGH = 3.0
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
    async with new_forge(allow_local_requests=True) as forge:
        await furnish(forge)
        await asyncio.sleep(1)  # what has been sent is recorded
        before = forge.database.generation
        await asyncio.sleep(LONG_ENOUGH)
        assert forge.database.generation == before


async def test_periodic_tasks_that_find_nothing_to_do_write_nothing(new_forge: Any) -> None:
    async with new_forge(work=False, status_check_timeout=60) as forge:
        periodic = forge.server.app[QUEUE]._app.periodic_registry.periodic_tasks
        tasks = {entry.task.name: entry.task for entry in periodic.values()}
        assert len(tasks) > 10
        for name, task in tasks.items():
            before = forge.database.generation
            await task.func(timestamp=0)
            assert forge.database.generation == before, name
