"""Which jobs of a pipeline go on now: the order that stages and `needs` give. Pure."""

from collections.abc import Iterable, Mapping, Sequence

import attrs

from api_server.ci.pipelines.composite import composite, composite_of_needs
from api_server.ci.pipelines.states import COMPLETE, TRANSITIONS, Event, Status

#: `when` -> the statuses of what came before with which the job runs; with the others it is skipped.
_RUNS_AFTER: Mapping[str, frozenset[Status]] = {
    "on_success": frozenset({"success", "skipped"}),
    "on_failure": frozenset({"failed"}),
    "always": frozenset({"success", "failed", "canceled", "skipped"}),
    "manual": frozenset({"success", "skipped"}),
    "delayed": frozenset({"success", "skipped"}),
}


@attrs.frozen(kw_only=True)
class Job:
    """A job as far as its place in the order goes."""

    id: int
    name: str
    stage_index: int
    status: Status
    when: str = "on_success"
    allow_failure: bool = False
    #: Names; None: all jobs of earlier stages.
    needs: frozenset[str] | None = None
    has_resource_group: bool = False


def next_events(jobs: Iterable[Job]) -> list[tuple[int, Event]]:
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


def enqueuing(job: Job) -> Event:
    """The event by which a job goes on its way to a runner."""
    return "wait_for_resource" if job.has_resource_group else "enqueue"


def dependents(jobs: Sequence[Job], of: Iterable[str]) -> set[str]:
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
                bool(job.needs & reached)
                if job.needs is not None
                else first is not None and job.stage_index > first
            )
        }
        if not more:
            return found
        reached |= more
        found |= more


def _step(known: Mapping[str, Job]) -> list[tuple[Job, Event]]:
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


def _of_needs(needs: frozenset[str], known: Mapping[str, Job]) -> Status:
    return composite_of_needs(known[name] for name in needs if name in known) or "success"


def _event(job: Job, previous: Status) -> Event:
    accepted = _RUNS_AFTER[job.when]
    if job.needs is not None and job.when != "always":
        accepted -= {"skipped"}
    if previous not in accepted:
        return "skip"
    if job.when == "manual":
        return "actionize"
    return "schedule" if job.when == "delayed" else enqueuing(job)
