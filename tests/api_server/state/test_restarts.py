"""After PostgreSQL has gone, by whatever end, and come back, everything works again by itself."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from api_server.ci.runners.job_handlers import PENDING_JOBS
from api_server.state import database
from api_server.state.migrate import migrate
from forgelet.local.embedded_postgres import Cluster, temporary_cluster
from scripts.harness.processes import descendants
from tests.support.ci import CiProject, ci_project, eventually
from tests.support.database_roles import as_role
from tests.support.forge import Forge, running_forge
from tests.support.runner import a_runner
from tests.support.waiting import until

FAST, IMMEDIATE, KILLED = signal.SIGINT, signal.SIGQUIT, signal.SIGKILL


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One that nobody else uses."""
    with temporary_cluster() as started:
        migrate(started.url())
        yield started


@pytest.fixture
async def project(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[CiProject]:
    monkeypatch.setattr(database, "PATIENCE", 0.2)
    folder = tmp_path_factory.getbasetemp() / "restarts"  # the database is of this folder's key
    quick = {"database_connect_timeout": 1, "database_statement_timeout": 1, "database_pool": 3}
    async with running_forge(cluster.url(), folder, **quick) as forge:
        yield await ci_project(forge)


IN_TRANSACTIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = 'forgelet' AND state LIKE 'idle in %'"
)


def ask(cluster: Cluster, statement: str) -> Any:
    with as_role(cluster.url("postgres", "postgres")) as superuser:
        superuser.execute(statement)
        return superuser.fetchone()[0] if superuser.description else None


def end(cluster: Cluster, how: signal.Signals) -> None:
    """Ends the server and all its processes: what is killed leaves some behind."""
    server = cluster._server
    assert server is not None
    below = descendants(server.process.pid)
    server.process.send_signal(how)
    server.process.wait(20)
    for pid in below if how is KILLED else ():
        _send(pid, KILLED)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def restart(cluster: Cluster, how: signal.Signals, tmp_path: Path) -> None:
    await asyncio.to_thread(
        ask, cluster, "CHECKPOINT"
    )  # what it has acknowledged is not on disk: it is quick instead
    await asyncio.to_thread(end, cluster, how)
    await asyncio.to_thread(cluster.start, tmp_path / "server.log")


async def answers(forge: Forge, project: CiProject) -> bool:
    return (await project.api.get(project.url)).status == 200


@pytest.mark.parametrize("how", [FAST, IMMEDIATE, KILLED])
async def test_everything_works_again_by_itself(
    cluster: Cluster, project: CiProject, tmp_path: Path, how: signal.Signals
) -> None:
    forge = project.forge
    runner = await a_runner(forge, project_id=project.id)
    waiting = asyncio.create_task(runner.poll(last_update="1"))
    await until(lambda: forge.server.app[PENDING_JOBS]._waiting)
    await restart(cluster, how, tmp_path)
    await eventually(lambda: answers(forge, project))
    # A commit's pipeline is made by the queue, and the runner is woken by a notification.
    await project.commit("build: {script: echo}", message="Build")
    async with asyncio.timeout(20):  # the poll itself would take 30
        assert (await waiting).status == 201
    readiness = await eventually(lambda: _ready(forge))
    assert readiness["status"] == "ok"
    pool = forge.database._connections
    await until(lambda: (len(pool._used), pool._room._value) == (0, 3))


async def _ready(forge: Forge) -> Any:
    answer = await forge.anonymous.get(f"{forge.base}/-/readiness")
    return answer.body if answer.body["status"] == "ok" else None


async def test_a_frozen_one_is_given_up_in_time_and_taken_up_again(
    cluster: Cluster, project: CiProject
) -> None:
    forge, server = project.forge, cluster._server
    assert server is not None
    pids = [server.process.pid, *descendants(server.process.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(20):
            found = await asyncio.gather(
                *(project.api.get(f"{project.url}/jobs") for _ in range(8)),
                *(project.api.post(f"{project.url}/variables", {"key": "A", "value": "1"}) for _ in range(2)),
                *(project.api.get(project.url, timeout=15) for _ in range(2)),
            )
        assert [(answer.status, answer.body) for answer in found] == [
            (503, {"message": "503 Service Unavailable"})
        ] * len(found)
    finally:
        for pid in pids:
            _send(pid, signal.SIGCONT)
    await eventually(lambda: answers(forge, project))
    pool = forge.database._connections
    await until(lambda: (len(pool._used), pool._room._value) == (0, 3))

    async def nothing_left() -> bool:
        return await asyncio.to_thread(ask, cluster, IN_TRANSACTIONS) == 0

    assert await eventually(nothing_left), "no transaction stays open"
