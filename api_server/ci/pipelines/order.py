"""Which jobs of a pipeline go on now: the order that stages and `needs` give. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import attrs

from api_server.ci.pipelines.composite_status import composite, composite_of_needs
from api_server.ci.pipelines.states import COMPLETE, TRANSITIONS, Event, Status

#: `when` -> the statuses of what came before with which the job runs; with the others it is skipped.
_RUNS_AFTER: Mapping[str, frozenset[Status]] = {
    "on_success": frozenset({"success", "skipped"}),
    "on_failure": frozenset({"failed"}),
    "always": COMPLETE,
    "manual": frozenset({"success", "skipped"}),
    "delayed": frozenset({"success", "skipped"}),
}


@attrs.frozen(kw_only=True)
class OrderedJob:
    """A job as far as its place in the order of its pipeline goes."""

    id: int
    project_id: int
    kind: Literal["build", "bridge"]
    status: Status
    name: str
    stage_index: int
    #: Names; None: all jobs of earlier stages.
    needs: list[str] | None
    when_run: str
    allow_failure: bool
    resource_group: str | None
    #: Its runner knows the status `canceling`.
    cancels_gracefully: bool


def next_events(jobs: Iterable[OrderedJob]) -> list[tuple[int, Event]]:
    """What happens to the jobs in status `created` whose turn has come (or never will): their ids with the event.

    `jobs` are the latest ones of the pipeline. Skipping a job may bring the turn of others, so it goes round until
    nothing changes: the result is complete, and asking again after it has happened gives nothing.
    """
    known = {job.name: job for job in jobs}
    events: list[tuple[int, Event]] = []
    while step := _step(known):
        for job, event in step:
            events.append((job.id, event))
            known[job.name] = attrs.evolve(job, status=TRANSITIONS[event][job.status])
    return events


def enqueuing(job: OrderedJob) -> Event:
    """The event by which a job goes on its way to a runner."""
    return "enqueue" if job.resource_group is None else "wait_for_resource"


def dependents(jobs: Sequence[OrderedJob], of: Iterable[str]) -> set[str]:
    """Names of the jobs that come after those named: by stage for jobs without `needs`, else by need, transitively."""
    by_name = {job.name: job for job in jobs}
    reached = set(of)
    found: set[str] = set()
    while True:
        first = min((by_name[name].stage_index for name in reached if name in by_name), default=None)
        more = {
            job.name
            for job in jobs
            if job.name not in reached
            and (
                not reached.isdisjoint(job.needs)
                if job.needs is not None
                else first is not None and job.stage_index > first
            )
        }
        if not more:
            return found
        reached |= more
        found |= more


def _step(known: Mapping[str, OrderedJob]) -> list[tuple[OrderedJob, Event]]:
    waiting = [job for job in known.values() if job.status == "created"]
    before = {
        index: composite(job for job in known.values() if job.stage_index < index) or "success"
        for index in {job.stage_index for job in waiting if job.needs is None}
    }
    step = []
    for job in waiting:
        previous = before[job.stage_index] if job.needs is None else _of_needs(job.needs, known)
        if previous in COMPLETE:
            step.append((job, _event(job, previous)))
    return step


def _of_needs(needs: Iterable[str], known: Mapping[str, OrderedJob]) -> Status:
    return composite_of_needs(known[name] for name in needs if name in known) or "success"


def _event(job: OrderedJob, previous: Status) -> Event:
    accepted = _RUNS_AFTER[job.when_run]
    if job.needs is not None and job.when_run != "always":
        accepted -= {"skipped"}
    if previous not in accepted:
        return "skip"
    if job.when_run == "manual":
        return "actionize"
    return "schedule" if job.when_run == "delayed" else enqueuing(job)
