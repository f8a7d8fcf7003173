"""Of the waiting runners, those are called that may take a new job; each gets the job that the rule chooses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import psycopg2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from api_server.ci.runners import job_queries
from api_server.ci.runners.job_handlers import PENDING_JOBS
from api_server.ci.runners.job_queries import Choice, choose_job
from api_server.ci.runners.pending_jobs import CALLED_AT_A_TIME, LISTENER, PendingJobs
from api_server.state.database import Database, connect
from api_server.state.errors import Unavailable
from api_server.web.context import SERVICES
from common.lifecycle import BackgroundTasks
from tests.support.ci import ci_project
from tests.support.forge import Forge
from tests.support.runner import a_runner, until_waiting
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
    #: Number of questions who may take something; runners that asked for a job; runners by the jobs that they got.
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
        """Wait as a runner's request does that has found no job."""
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
        """Create jobs, and notify waiting runners; return the id of the last job."""
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
        """Wait until this many jobs are taken, and the task that calls runners waits again."""
        await until(lambda: len(self.taken) >= jobs)
        await self.quiet()

    async def quiet(self) -> None:
        """Wait until the task that calls runners waits."""
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
    """Create many runners; the last one may take jobs with the tag `rare`."""
    async with scene.database.transaction() as transaction:
        rows: list[Any] = await transaction.rows(RUNNERS, number=WAITING)  # type: ignore[arg-type]
    return sorted(row.id for row in rows)


async def test_one_job_does_not_wake_all_who_may_take_it(scene: Scene) -> None:
    runners = await _many(scene)
    async with _calling(scene, runners):
        await scene.job()
        await scene.settled(1)
        assert scene.asked == runners[:1]  # the one that has waited longest
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
        await scene.quiet()  # and no runner waits
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
        await until(lambda: forge.database.value(CUT_LISTENERS))
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
        await until(lambda: forge.database.value(CUT_LISTENERS))
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
    """Return the status, and the part about background work."""
    async with forge.session.get(f"{forge.base}/-/readiness") as answer:
        assert answer.status == 200
        shown = await answer.json()
        return shown["status"], shown["background"]


#: All pending jobs that the runner may take: the oldest one of the project with the fewest running jobs.
RULE = """
    WITH busy AS (
        SELECT project_id, count(*) AS running FROM jobs
        WHERE status IN ('running', 'canceling') AND kind = 'build' GROUP BY project_id
    )
    SELECT jobs.id FROM runners
    JOIN jobs ON (jobs.tag_list <@ runners.tag_list OR %(star_is_any)s AND '*' = ANY (runners.tag_list))
        AND (jobs.tag_list <> '{}' OR runners.run_untagged)
        AND (jobs.protected OR runners.access_level <> 'ref_protected')
    JOIN projects ON projects.id = jobs.project_id
    JOIN namespaces ON namespaces.id = projects.namespace_id
    LEFT JOIN busy ON busy.project_id = jobs.project_id
    WHERE runners.id = %(runner_id)s AND runners.active AND jobs.status = 'pending' AND jobs.kind = 'build'
        AND projects.builds_access_level <> 'disabled' AND NOT projects.archived
        AND CASE runners.runner_type
            WHEN 'instance_type' THEN true
            WHEN 'group_type' THEN runners.namespace_id = ANY (namespaces.lineage)
            ELSE EXISTS (SELECT FROM runner_projects
                WHERE runner_projects.runner_id = runners.id AND runner_projects.project_id = jobs.project_id) END
    ORDER BY coalesce(busy.running, 0), jobs.id LIMIT 1
    FOR UPDATE OF jobs SKIP LOCKED
"""
LOCK_ALL = "SELECT FROM jobs WHERE id = ANY (%(ids)s::bigint[]) FOR UPDATE"
CLEAR = "DELETE FROM jobs; DELETE FROM runners; DELETE FROM pipelines; DELETE FROM projects"

PROJECTS = (1, 2, 3, 4)
tag_lists = st.lists(st.sampled_from(["a", "b", "*"]), max_size=2)


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "project": draw(st.sampled_from(PROJECTS)),
        "kind": draw(st.sampled_from(["build", "build", "build", "bridge"])),
        "status": draw(st.sampled_from(["pending"] * 4 + ["running", "canceling", "success", "created"])),
        "tags": draw(tag_lists),
        "protected": draw(st.booleans()),
    }


@st.composite
def runners(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["instance_type", "group_type", "project_type"]))
    return {
        "type": kind,
        "namespace": draw(st.sampled_from([1, 2, 3])) if kind == "group_type" else None,
        "projects": draw(st.sets(st.sampled_from(PROJECTS))) if kind == "project_type" else set(),
        "tags": draw(tag_lists),
        "untagged": draw(st.booleans()),
        "access": draw(st.sampled_from(["not_protected", "ref_protected"])),
        "active": draw(st.sampled_from([True, True, True, False])),
    }


@st.composite
def projects(draw: st.DrawFn) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "namespace": draw(st.sampled_from([1, 2, 3])),
            "archived": draw(st.sampled_from([False, False, False, True])),
            "builds": draw(st.sampled_from(["enabled", "private", "enabled", "disabled"])),
        }
        for number in PROJECTS
    ]


@pytest.fixture(scope="module")
def connections(new_database) -> Iterator[tuple[Any, Any]]:
    """Two connections to a database of its own: one chooses jobs, and the other locks rows meanwhile."""
    url = new_database()
    with contextlib.closing(psycopg2.connect(url)) as one, contextlib.closing(psycopg2.connect(url)) as other:
        one.cursor().execute(NAMESPACES)
        one.commit()
        yield one, other


@attrs.frozen
class Asking:
    """The part of a transaction that the choice needs."""

    cursor: Any

    async def one(self, statement: str, **parameters: Any) -> Choice:
        self.cursor.execute(statement, parameters)
        return Choice(*self.cursor.fetchone())


@settings(max_examples=settings().max_examples // 2)
@given(
    projects(),
    st.lists(jobs(), max_size=40),
    runners(),
    st.booleans(),
    st.sets(st.integers(0, 39)),
    st.booleans(),
)
def test_it_takes_the_jobs_that_the_rule_takes(connections, made, waiting, runner, star, held, gone) -> None:
    """The runner takes jobs until none is left, while another transaction has locked some of them."""
    one, other = connections
    cursor = one.cursor()
    try:
        for project in made:
            cursor.execute(PROJECT, project)
        ids = []
        for number, job in enumerate(waiting):
            cursor.execute(JOB, job | {"name": str(number)})
            ids.append(cursor.fetchone()[0])
        cursor.execute(RUNNER, runner)
        runner_id = cursor.fetchone()[0]
        for project_id in runner["projects"]:
            cursor.execute("INSERT INTO runner_projects VALUES (%s, %s)", [runner_id, project_id])
        if gone:  # its jobs are deleted after it, step by step
            cursor.execute("DELETE FROM projects WHERE id = 1")
        one.commit()
        other.cursor().execute(LOCK_ALL, {"ids": [ids[number] for number in held if number < len(ids)]})
        _take_all(cursor, runner_id, star)
    finally:
        other.rollback()
        one.rollback()
        cursor.execute(CLEAR)
        one.commit()


def _take_all(cursor: Any, runner_id: int, star: bool) -> None:
    while True:
        cursor.execute("SAVEPOINT before")
        cursor.execute(RULE, {"runner_id": runner_id, "star_is_any": star})
        right = cursor.fetchone()
        cursor.execute("ROLLBACK TO before")
        chosen = asyncio.run(choose_job(Asking(cursor), runner_id, star_is_any=star))  # type: ignore[arg-type]
        assert chosen == (right and right[0])
        if chosen is None:
            return
        cursor.execute(TAKE, {"id": chosen})


def test_it_looks_further_where_others_hold_all_that_it_looked_at(connections) -> None:
    one, other = connections
    cursor, depth = one.cursor(), job_queries.FIRST_DEPTH
    try:
        cursor.execute(PROJECT, {"id": 1, "namespace": 1, "archived": False, "builds": "enabled"})
        job = {"project": 1, "kind": "build", "status": "pending", "tags": [], "protected": False}
        ids = []
        for number in range(9 * depth):
            cursor.execute(JOB, job | {"name": str(number)})
            ids.append(cursor.fetchone()[0])
        runner = {"type": "instance_type", "namespace": None, "tags": [], "untagged": True}
        cursor.execute(RUNNER, runner | {"access": "not_protected", "active": True})
        (runner_id,) = cursor.fetchone()
        one.commit()
        other.cursor().execute(LOCK_ALL, {"ids": ids[:-1]})
        assert asyncio.run(choose_job(Asking(cursor), runner_id, star_is_any=False)) == ids[-1]  # type: ignore[arg-type]
    finally:
        other.rollback()
        one.rollback()
        cursor.execute(CLEAR)
        one.commit()
