"""The pure rules: the status of many jobs, and which job is next."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.pipelines.states import (
    COMPLETE,
    STATUSES,
    TRANSITIONS,
    OrderedJob,
    composite_status,
    composite_status_of_needs,
    dependents,
    next_events,
)


def a_job(number: int, **values) -> OrderedJob:
    usual = {"project_id": 1, "kind": "build", "name": f"job {number}", "stage_index": 0, "needs": None}
    usual |= {"when_run": "on_success", "allow_failure": False}
    usual |= {"resource_group": None, "cancels_gracefully": False}
    return OrderedJob(id=number, **usual | values)


def jobs_of(*given: str) -> list[OrderedJob]:
    """`!` marks those that may fail."""
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
    """Jobs in any statuses, with needs that point backwards only."""
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
    """When every job on its way finishes and every manual one is played, nothing stays created."""
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
    """What it takes to skip `count` jobs behind one that has failed, each because of the one before it."""
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
    """It runs on the event loop, whenever a job of the pipeline moves."""
    assert _seconds(1000, chain) < 12 * _seconds(250, chain)
