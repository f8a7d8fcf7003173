"""The table of transitions, which PostgreSQL enforces, and the pure rules: the common status of many jobs, and the
next job."""

import asyncio
import random
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.pipelines import job_queries, transitions
from api_server.ci.pipelines.states import (
    COMPLETE,
    EVENTS,
    STATUSES,
    TRANSITIONS,
    OrderedJob,
    composite_status,
    composite_status_of_needs,
    dependents,
    next_events,
)
from api_server.state.database import connect
from api_server.state.secrets import JOB_TOKEN, digest, new_token
from tests.support.ci import a_runner, bring, ci_project
from tests.support.plans import undone

WAITING = ("waiting_for_resource", "preparing", "waiting_for_callback")
UNFINISHED = ("created", *WAITING, "pending", "running")

#: The rows of 4.2: event -> (statuses before, status after), except `canceling`, which has a table of its own.
ROWS = {
    "enqueue": (("created", "skipped", "manual", "scheduled"), "pending"),
    "wait_for_resource": (("created", "skipped", "manual", "scheduled"), "waiting_for_resource"),
    "prepare": (("created", "skipped", "manual", "scheduled", "waiting_for_resource"), "preparing"),
    "enqueue_waiting_for_resource": (("waiting_for_resource",), "pending"),
    "enqueue_preparing": (("preparing",), "pending"),
    "actionize": (("created",), "manual"),
    "schedule": (("created",), "scheduled"),
    "unschedule": (("scheduled",), "manual"),
    "enqueue_scheduled": (("scheduled",), "pending"),
    "run": (("pending",), "running"),
    "take_back": (("running",), "pending"),
    "success": (UNFINISHED, "success"),
    "drop": ((*UNFINISHED, "manual", "scheduled"), "failed"),
    "skip": (("created", "waiting_for_resource", "preparing", "pending"), "skipped"),
    "cancel": ((*UNFINISHED, "scheduled", "manual"), "canceled"),
    "cancel_gracefully": (("running",), "canceling"),
    "force_cancel": ((), None),
    "process": (("skipped", "manual"), "created"),
    "reopen": (("success", "failed", "canceled", "manual", "skipped"), "running"),
    "mirror_manual": (("running",), "manual"),
    "mirror_skipped": (("running",), "skipped"),
}
FROM_CANCELING = {"success": "canceled", "drop": "canceled", "force_cancel": "canceled"}


def test_the_thirteen_statuses_of_4_1():
    assert len(STATUSES) == len(set(STATUSES)) == 13


@pytest.mark.parametrize("event", EVENTS)
def test_row_of_4_2(event):
    before, after = ROWS[event]
    expected = dict.fromkeys(before, after)
    if event in FROM_CANCELING:
        expected["canceling"] = FROM_CANCELING[event]
    assert TRANSITIONS[event] == expected


WHOLE_ROW = "SELECT to_json(jobs)::text FROM jobs WHERE id = %(id)s"


@pytest.fixture(scope="module")
async def job_ids(project):
    """Jobs in each status, by the status."""
    jobs = {status: await project.job() for status in STATUSES}
    for status, job in jobs.items():
        await bring(project.forge, job["id"], status)
    return {status: job["id"] for status, job in jobs.items()}


@pytest.mark.parametrize("event", EVENTS)
async def test_postgresql_moves_a_job_exactly_where_the_table_says(project, job_ids, event):
    """Every event in every status leads to the status and the timestamps of 4.2, or changes nothing at all."""
    for status, job_id in job_ids.items():
        async with undone(project.forge.database) as transaction:
            await _assert_moved(transaction, job_id, status, event)


async def _assert_moved(transaction, job_id, status, event) -> None:
    before = await transaction.value(WHOLE_ROW, id=job_id)
    moved = await job_queries.transit(transaction, [job_id], event)
    after = await transaction.row("SELECT * FROM jobs WHERE id = %(id)s", id=job_id)
    expected = TRANSITIONS[event].get(status)
    if expected is None:
        assert (moved, await transaction.value(WHOLE_ROW, id=job_id)) == ([], before)
        return
    assert (moved[0].status, after.status) == (expected, expected)
    assert (after.finished_at is not None) == (expected in ("success", "failed", "canceled"))
    if expected == "running":
        assert after.started_at is not None
    if expected in ("pending", *WAITING[:2]) and status in ("created", "skipped", "manual", "scheduled"):
        assert after.queued_at is not None
    assert (after.scheduled_at is not None) == (expected == "scheduled")


WATCH = """
    CREATE TABLE IF NOT EXISTS seen (job_id bigint, before text, after text, runner_id bigint);
    CREATE OR REPLACE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF old.status <> new.status THEN
            INSERT INTO seen VALUES (new.id, old.status, new.status, new.runner_id);
        END IF;
        RETURN new;
    END $$;
    CREATE OR REPLACE TRIGGER watch AFTER UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION watch();
"""
PIPELINE = """
stages: [a, b, c]
one: {stage: a, script: echo, retry: 1}
two: {stage: a, script: echo, when: manual}
three: {stage: a, script: echo, resource_group: r}
four: {stage: b, script: echo}
five: {stage: b, script: echo, needs: [one], allow_failure: true}
six: {stage: b, script: echo, when: delayed, start_in: 1 hour}
seven: {stage: c, script: echo, when: always, resource_group: r}
eight: {stage: c, script: echo, when: on_failure}
"""
ALLOWED = {step for changed in TRANSITIONS.values() for step in changed.items()}


@pytest.mark.parametrize("seed", range(3))
async def test_no_sequence_of_concurrent_callers_reaches_a_forbidden_state(new_forge, seed):
    """Runners, people and queued work change the jobs of one pipeline at the same time, each on a connection of its
    own. Every change is in the table, every job goes to one runner at most, and the pipeline's final status follows
    from its jobs."""
    async with new_forge(work=True) as forge:
        project = await ci_project(forge)
        pipeline = await project.pipeline(PIPELINE)
        runners = [await a_runner(forge) for _ in range(3)]
        url = forge.settings.database_url
        async with connect(url, base_url="http://localhost", size=8) as many:
            async with many.transaction() as transaction:
                await transaction.run(WATCH)
            await asyncio.gather(
                *(
                    _pull(many, pipeline["id"], project, random.Random(seed * 10 + n), runners)
                    for n in range(6)
                )
            )
            async with many.transaction() as transaction:
                await transitions.refresh(transaction, pipeline["id"])
            seen = await many.rows("SELECT * FROM seen")
            latest = await job_queries.latest_jobs(many, pipeline["id"])
            status = await many.value("SELECT status FROM pipelines WHERE id = %(id)s", id=pipeline["id"])
    assert {(row.before, row.after) for row in seen} <= ALLOWED
    assert len(seen) > 20
    response = Counter(row.job_id for row in seen if row.after == "running")
    assert set(response.values()) <= {1}
    assert len({row.name for row in latest}) == len(latest) == 8
    assert status == composite_status(latest)


async def _pull(many, pipeline_id, project, choice, runners) -> None:
    for _ in range(25):
        rows = await many.rows("SELECT id FROM jobs WHERE pipeline_id = %(id)s", id=pipeline_id)
        job_id = choice.choice(rows).id
        deed = choice.choice(["run"] * 3 + ["success", "success", "drop", "cancel", "retry", "play", "skip"])
        async with many.transaction() as transaction:
            started = None
            if deed == "run":
                started = await transitions.start_job(
                    transaction,
                    job_id,
                    runner_id=choice.choice(runners),
                    runner_manager_id=None,
                    token_digest=digest(new_token(JOB_TOKEN)),
                    cancels_gracefully=choice.random() < 0.5,
                )
            elif deed == "cancel":
                await transitions.cancel_job(transaction, job_id, force=choice.random() < 0.3)
            elif deed == "retry":
                await transitions.retry_job(transaction, job_id, project.developer.id)
            elif deed == "play":
                await transitions.play_job(transaction, job_id, project.developer.id, {})
            else:
                await transitions.advance(transaction, job_id, deed)
        if started is not None:
            async with many.transaction() as transaction:
                await transitions.refresh(transaction, pipeline_id)


async def test_a_job_is_handed_out_once_however_many_ask(project):
    job = await project.job()
    runner = await a_runner(project.forge)
    async with connect(project.forge.settings.database_url, base_url="http://localhost", size=10) as many:

        async def ask() -> bool:
            async with many.transaction() as transaction:
                return (
                    await transitions.start_job(
                        transaction,
                        job["id"],
                        runner_id=runner,
                        runner_manager_id=None,
                        token_digest=digest(new_token(JOB_TOKEN)),
                        cancels_gracefully=False,
                    )
                ) is not None

        assert sorted(await asyncio.gather(*(ask() for _ in range(20)))) == [False] * 19 + [True]


async def test_a_retried_job_is_retried_once_however_many_ask(project):
    """4.4: only one of the callers gets the new job."""
    job = await project.job_in("failed")
    async with connect(project.forge.settings.database_url, base_url="http://localhost", size=10) as many:

        async def ask() -> bool:
            async with many.transaction() as transaction:
                return await transitions.retry_job(transaction, job["id"], project.developer.id) is not None

        assert sum(await asyncio.gather(*(ask() for _ in range(10)))) == 1


def a_job(number: int, **values) -> OrderedJob:
    usual = {"project_id": 1, "kind": "build", "name": f"job {number}", "stage_index": 0, "needs": None}
    usual |= {"when_run": "on_success", "allow_failure": False}
    usual |= {"resource_group": None, "cancels_gracefully": False}
    return OrderedJob(id=number, **usual | values)


def jobs_of(*given: str) -> list[OrderedJob]:
    """`!` marks jobs that are allowed to fail."""
    return [
        a_job(n, status=text.rstrip("!"), allow_failure=text.endswith("!")) for n, text in enumerate(given)
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("skipped", "manual!"), "skipped"),
        (("success", "skipped", "failed!", "manual!"), "success"),
        (("success", "canceled!"), "success"),
        (("created", "failed!", "manual!"), "created"),
        (("preparing", "manual!"), "preparing"),
        (("canceled", "success", "skipped", "failed!"), "canceled"),
        (("pending", "created", "skipped", "manual!"), "pending"),
        (("running", "failed"), "running"),
        (("pending", "success"), "running"),
        (("canceling", "running"), "canceling"),
        (("waiting_for_resource", "success", "manual"), "waiting_for_resource"),
        (("waiting_for_callback", "success"), "waiting_for_callback"),
        (("manual", "success"), "manual"),
        (("manual", "failed"), "manual"),
        (("scheduled", "success"), "scheduled"),
        (("preparing", "success"), "preparing"),
        (("created", "success"), "running"),
        (("failed", "success", "canceled", "skipped"), "failed"),
        ((), None),
    ],
)
def test_row_of_4_5(given, expected):
    assert composite_status(jobs_of(*given)) == expected


def test_a_need_that_does_not_run_skips_and_one_that_has_not_finished_holds_up():
    assert composite_status_of_needs(jobs_of("success", "skipped")) == "skipped"
    assert composite_status_of_needs(jobs_of("failed", "manual!")) == "skipped"
    assert composite_status_of_needs(jobs_of("running", "skipped")) == "pending"
    assert composite_status_of_needs(jobs_of("success", "manual")) == "pending"
    assert composite_status_of_needs(jobs_of("success", "failed!")) == "success"
    assert composite_status_of_needs(jobs_of("success", "failed")) == "failed"


@st.composite
def pipelines(draw) -> list[OrderedJob]:
    """Draw jobs in any statuses, with needs that point only backwards."""
    count = draw(st.integers(1, 12))
    found: list[OrderedJob] = []
    for number in range(count):
        stage = draw(st.integers(found[-1].stage_index if found else 0, number))
        names = [job.name for job in found]
        needs = draw(st.none() | st.lists(st.sampled_from(names), max_size=3, unique=True)) if names else None
        found.append(
            a_job(
                number,
                stage_index=stage,
                status=draw(st.sampled_from(["created"] * 8 + list(STATUSES))),
                when_run=draw(st.sampled_from(["on_success", "on_failure", "always", "manual", "delayed"])),
                allow_failure=draw(st.booleans()),
                needs=needs,
                resource_group=draw(st.sampled_from([None, "group"])),
            )
        )
    return found


def after(jobs: list[OrderedJob], events) -> list[OrderedJob]:
    import attrs

    known = {job.id: job for job in jobs}
    for job_id, event in events:
        job = known[job_id]
        known[job_id] = attrs.evolve(job, status=TRANSITIONS[event][job.status])
    return list(known.values())


@given(pipelines())
def test_only_created_jobs_move_each_once_and_nothing_is_left_to_do(jobs):
    events = next_events(jobs)
    assert len({job_id for job_id, _ in events}) == len(events)
    assert {jobs[job_id].status for job_id, _ in events} <= {"created"}
    assert next_events(after(jobs, events)) == []


@given(pipelines())
def test_a_job_goes_on_only_when_all_that_it_waits_for_has_an_end_or_does_not_count(jobs):
    then = {job.name: job for job in after(jobs, next_events(jobs))}
    for job in jobs:
        now = then[job.name]
        if job.status == "created" and now.status != "created":
            before = (
                [other for other in then.values() if other.stage_index < job.stage_index]
                if job.needs is None
                else [then[name] for name in job.needs]
            )
            if now.status != "skipped":
                assert all(
                    other.status in COMPLETE or (other.status == "manual" and other.allow_failure)
                    for other in before
                )


@given(pipelines())
def test_a_pipeline_always_comes_to_an_end(jobs):
    """If every started job finishes and every manual one is played, no job stays created."""
    import attrs

    for _ in range(len(jobs) + 1):
        jobs = after(jobs, next_events(jobs))
        jobs = [
            job if job.status in (*COMPLETE, "created") else attrs.evolve(job, status="success")
            for job in jobs
        ]
    assert {job.status for job in jobs} <= COMPLETE


@given(pipelines())
def test_dependents_come_later_and_never_are_the_job_itself(jobs):
    for job in jobs:
        found = dependents(jobs, [job.name])
        assert job.name not in found
        assert {other.name for other in jobs if other.needs and job.name in other.needs} <= found


def _seconds(count: int, chain: str) -> float:
    """Return the seconds for skipping `count` jobs behind a failed one, each because of the one before it."""
    jobs = [
        a_job(n, status="created", stage_index=n)
        if chain == "of stages"
        else a_job(n, status="created", needs=[f"job {n - 1}"])
        for n in range(1, count)
    ]
    jobs = [*reversed(jobs), a_job(0, status="failed")]
    times = []
    for _ in range(3):
        before = time.thread_time()
        assert len(next_events(jobs)) == count - 1
        assert len(dependents(jobs, ["job 0"])) == count - 1
        times.append(time.thread_time() - before)
    return min(times)


@pytest.mark.parametrize("chain", ["of stages", "of needs"])
def test_a_long_chain_takes_as_much_longer_as_it_is(chain):
    """Its time is linear. This matters because it runs on the event loop whenever a job of the pipeline changes."""
    assert _seconds(1000, chain) < 12 * _seconds(250, chain)
