"""Of the runners that wait, those are called, and no more, that may take what has come."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
from prometheus_client import CollectorRegistry

from api_server.ci.runners import job_queries
from api_server.ci.runners.job_queries import choose_job
from api_server.ci.runners.pending_jobs import CALLED_AT_A_TIME, PendingJobs
from api_server.state.database import Database, connect
from api_server.state.errors import Unavailable
from common.lifecycle import BackgroundTasks
from tests.support.waiting import until
from tests.support.waiting_jobs import JOB, NAMESPACES, PROJECT, RUNNER, TAKE

WAITING = 500
RUNNERS = """
    INSERT INTO runners (runner_type, token_digest, tag_list)
    SELECT 'instance_type', sha256(number::text::bytea), CASE number WHEN %(number)s THEN '{rare}' ELSE '{}' END::text[]
    FROM generate_series(1, %(number)s) AS number RETURNING id
"""
LOCK = "SELECT FROM jobs WHERE id = %(id)s FOR UPDATE"
NOTIFY = "SELECT pg_notify('jobs_pending', '1')"
OPEN = {"id": 1, "namespace": 1, "archived": False, "builds": "enabled"}
WAITS = {"project": 1, "kind": "build", "status": "pending", "protected": False}


@attrs.define
class Scene:
    """Runners that wait for jobs of one project."""

    database: Database
    url: str
    pending: PendingJobs = attrs.field(factory=PendingJobs)
    #: How often it was asked who may take something; who asked for a job; and who got which.
    looked: int = 0
    asked: list[int] = attrs.field(factory=list)
    taken: dict[int, int] = attrs.field(factory=dict)
    problems: list[Exception] = attrs.field(factory=list)

    async def able(self, runner_ids: Sequence[int], projects: frozenset[int | None], most: int) -> list[int]:
        self.looked += 1
        if self.problems:
            raise self.problems.pop()
        return await job_queries.able_runners(self.database, runner_ids, projects, most, star_is_any=False)

    async def wait(self, runner_id: int, generation: int | None = None) -> None:
        """As a runner's request does that has found nothing."""
        generation = self.pending.generation if generation is None else generation
        with self.pending.waiting(runner_id, generation) as waiter:
            while await self.pending.called(waiter, 60):
                self.asked.append(runner_id)
                async with self.database.transaction() as transaction:
                    job_id = await choose_job(transaction, runner_id, star_is_any=False)
                    if job_id is not None:
                        await transaction.run(TAKE, id=job_id)
                if job_id is not None:
                    self.taken[job_id] = runner_id
                    waiter.end_turn(True)
                    return
                self.pending.got_nothing(waiter)

    async def job(self, *tags: str, told: bool = True, number: int = 1) -> int:
        """New jobs, which waiting runners are told of; the id of the last."""
        async with self.database.transaction() as transaction:
            for each in range(number):
                job = WAITS | {"tags": list(tags), "name": f"{tags} {each}"}
                job_id = int(await transaction.value(JOB, **job))
            if told:
                await transaction.run(NOTIFY)
        return job_id

    async def runner(self, *tags: str) -> int:
        values = {"type": "instance_type", "namespace": None, "untagged": True, "access": "not_protected"}
        async with self.database.transaction() as transaction:
            return int(await transaction.value(RUNNER, **values, tags=list(tags), active=True))

    async def settled(self, jobs: int) -> None:
        """Wait until so many have been taken, and whoever calls runners waits for news."""
        await until(lambda: len(self.taken) >= jobs)
        await self.quiet()

    async def quiet(self) -> None:
        """Wait until whoever calls runners waits for news."""
        news = self.pending._news
        await until(lambda: news._waiters and not news.is_set())


@asynccontextmanager
async def _calling(scene: Scene, runners: Sequence[int]) -> AsyncIterator[None]:
    background = BackgroundTasks(CollectorRegistry())
    async with scene.pending.listening(scene.url, background, scene.able):
        waiting = [asyncio.create_task(scene.wait(runner_id)) for runner_id in runners]
        await until(lambda: scene.pending.generation)  # it listens
        await scene.quiet()
        scene.looked = 0
        try:
            yield
        finally:
            scene.pending.close()
            await asyncio.gather(*waiting, return_exceptions=True)


@pytest.fixture
async def scene(new_database: Callable[[], str]) -> AsyncIterator[Scene]:
    url = new_database()
    async with connect(url, base_url="http://localhost") as database:
        async with database.transaction() as transaction:
            await transaction.run(NAMESPACES)
            await transaction.run(PROJECT, **OPEN)
        yield Scene(database, url)


async def _many(scene: Scene) -> list[int]:
    """The last one may take what is tagged `rare`."""
    async with scene.database.transaction() as transaction:
        rows: list[Any] = await transaction.rows(RUNNERS, number=WAITING)  # type: ignore[arg-type]
    return sorted(row.id for row in rows)


async def test_one_job_does_not_wake_all_who_may_take_it(scene: Scene) -> None:
    runners = await _many(scene)
    async with _calling(scene, runners):
        await scene.job()
        await scene.settled(1)
        assert scene.asked == runners[:1]  # who has waited longest
        assert scene.looked <= 2


async def test_a_job_finds_the_only_one_who_may_take_it(scene: Scene) -> None:
    runners = await _many(scene)
    async with _calling(scene, runners):
        await scene.job("rare")
        await scene.settled(1)
        assert scene.asked == runners[-1:]
        assert scene.looked <= 2


async def test_a_job_that_nobody_here_may_take_wakes_nobody(scene: Scene) -> None:
    runners = await _many(scene)
    async with _calling(scene, runners):
        await scene.job("another")
        await scene.job("rare")
        await scene.settled(1)
        assert scene.asked == runners[-1:]


async def test_many_jobs_are_taken_by_as_many(scene: Scene) -> None:
    async with _calling(scene, await _many(scene)):
        await scene.job(number=40)
        await scene.settled(40)
        assert len(scene.taken) == 40
        assert len(scene.asked) <= 40 + CALLED_AT_A_TIME


async def test_a_job_that_another_gives_back_is_taken_without_a_notice(scene: Scene) -> None:
    runner = await scene.runner()
    async with _calling(scene, [runner]):
        async with scene.database.transaction() as other:
            job_id = await scene.job(told=False)
            await other.run(LOCK, id=job_id)
            scene.pending.announce(1)
            await until(lambda: scene.asked)
        await scene.settled(1)
        assert scene.taken == {job_id: runner}


async def test_a_notice_between_asking_and_waiting_is_not_missed(scene: Scene) -> None:
    runner = await scene.runner()
    async with _calling(scene, []):
        before = scene.pending.generation
        job_id = await scene.job()
        await until(lambda: scene.pending.generation > before)
        await scene.quiet()  # and nobody waits
        await asyncio.wait_for(scene.wait(runner, before), 20)
        assert scene.taken == {job_id: runner}


async def test_who_leaves_when_called_is_passed_over(scene: Scene) -> None:
    first, second = await scene.runner(), await scene.runner()
    async with _calling(scene, []):
        leaves = asyncio.create_task(_called_and_gone(scene, first))
        await asyncio.sleep(0)
        waits = asyncio.create_task(scene.wait(second))
        job_id = await scene.job()
        await asyncio.wait_for(waits, 20)
        assert await leaves
        assert scene.taken == {job_id: second}


async def _called_and_gone(scene: Scene, runner_id: int) -> bool:
    with scene.pending.waiting(runner_id, scene.pending.generation) as waiter:
        return await scene.pending.called(waiter, 60)


async def test_what_was_due_is_not_forgotten_with_the_database(scene: Scene) -> None:
    runner = await scene.runner()
    async with _calling(scene, [runner]):
        scene.problems.append(Unavailable("the database is away"))
        job_id = await scene.job()
        await scene.settled(1)
        assert scene.taken == {job_id: runner}


async def test_everybody_leaves(scene: Scene) -> None:
    runner = await scene.runner()
    async with _calling(scene, []):
        waits = asyncio.create_task(scene.wait(runner))
        await asyncio.sleep(0)
        with scene.pending.emptied():
            await asyncio.wait_for(waits, 20)
            await asyncio.wait_for(scene.wait(runner), 20)
    await asyncio.wait_for(scene.wait(runner), 20)
    assert scene.asked == []
