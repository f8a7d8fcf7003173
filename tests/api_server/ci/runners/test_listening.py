"""What listens for jobs is started again whatever ends it, and readiness and metrics say so."""

import asyncio

import pytest

from api_server.ci.runners.job_handlers import PENDING_JOBS
from api_server.ci.runners.pending_jobs import LISTENER
from api_server.web.context import SERVICES
from tests.support.ci import ci_project
from tests.support.forge import Forge
from tests.support.runner import a_runner, until_waiting

CUT_LISTENERS = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND query = 'LISTEN jobs_pending'
"""


async def test_it_survives_what_no_driver_raises(new_forge, monkeypatch: pytest.MonkeyPatch) -> None:
    async with new_forge(runner_poll_timeout=300) as forge, asyncio.timeout(60):
        project = await ci_project(forge)
        runner = await a_runner(forge, project_id=project.id)
        pending = forge.server.app[SERVICES][PENDING_JOBS]
        listen, problems = pending._listen, [RuntimeError("<UVPoll closed>; the handler is closed")]

        async def odd(url: str) -> None:
            if problems:
                raise problems.pop()
            await listen(url)

        monkeypatch.setattr(pending, "_listen", odd)
        while not await forge.database.value(CUT_LISTENERS):
            await asyncio.sleep(0.01)
        generation = pending.generation
        while problems or pending.generation == generation:
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(runner.poll(last_update="x"))
        await until_waiting(forge, runner)
        await project.pipeline()
        assert (await waiting).status == 201
        assert await _restarts(forge) >= 2
        assert (await _readiness(forge))[1] == {"status": "ok"}


async def test_readiness_says_that_it_is_down(new_forge, monkeypatch: pytest.MonkeyPatch) -> None:
    async with new_forge() as forge, asyncio.timeout(60):

        async def fails(_url: str) -> None:
            raise RuntimeError

        monkeypatch.setattr(forge.server.app[SERVICES][PENDING_JOBS], "_listen", fails)
        while not await forge.database.value(CUT_LISTENERS):
            await asyncio.sleep(0.01)
        down = {"status": "degraded", "message": f"Waits to be started again: {LISTENER}"}
        while await _readiness(forge) != ("degraded", down):
            await asyncio.sleep(0.05)


async def _restarts(forge: Forge) -> float:
    async with forge.session.get(f"{forge.base}/-/metrics") as answer:
        (line,) = [
            line
            for line in (await answer.text()).splitlines()
            if line.startswith(f'background_task_restarts_total{{task="{LISTENER}"}}')
        ]
        return float(line.split()[-1])


async def _readiness(forge: Forge) -> tuple[str, object]:
    """The whole, and what concerns work that should go on."""
    async with forge.session.get(f"{forge.base}/-/readiness") as answer:
        assert answer.status == 200
        shown = await answer.json()
        return shown["status"], shown["background"]
