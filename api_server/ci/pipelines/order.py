"""Which jobs of a pipeline go on now: the order that stages and `needs` give. Pure."""

import graphlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import attrs

from api_server.ci.pipelines.composite_status import composite_of_needs, kind_of, status_of
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
    #: `external`: what another system says, and nobody here moves.
    kind: Literal["build", "bridge", "external"]
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

    `jobs` are the latest ones of the pipeline. Each is looked at once, after all that it waits for, so that those which
    are skipped bring the turn of others: the result is complete, and asking again after it has happened gives nothing.
    """
    known: dict[str, OrderedJob] = {}
    events: list[tuple[int, Event]] = []
    kinds_before: set[str] = set()  # of the jobs of earlier stages
    for stage in _in_order(jobs):
        before = status_of(kinds_before) or "success"
        for job in stage:
            known[job.name] = job
            if job.status != "created":
                continue
            previous = before if job.needs is None else _of_needs(job.needs, known)
            if previous in COMPLETE:
                event = _event(job, previous)
                events.append((job.id, event))
                known[job.name] = attrs.evolve(job, status=TRANSITIONS[event][job.status])
        kinds_before |= {kind_of(known[job.name]) for job in stage}
    return events


def enqueuing(job: OrderedJob) -> Event:
    """The event by which a job goes on its way to a runner."""
    return "enqueue" if job.resource_group is None else "wait_for_resource"


def dependents(jobs: Sequence[OrderedJob], of: Iterable[str]) -> set[str]:
    """Names of the jobs that come after those named: by stage for jobs without `needs`, else by need, transitively."""
    reached = set(of)
    first = min((job.stage_index for job in jobs if job.name in reached), default=None)
    found: set[str] = set()
    for job in itertools.chain.from_iterable(_in_order(jobs)):
        if job.name in reached:
            continue
        if job.needs is not None:
            comes_after = not reached.isdisjoint(job.needs)
        else:
            comes_after = first is not None and job.stage_index > first
        if comes_after:
            reached.add(job.name)
            found.add(job.name)
    return found


def _in_order(jobs: Iterable[OrderedJob]) -> Iterator[list[OrderedJob]]:
    """The jobs by stage; those of one stage after what they need of it."""
    for _, stage in itertools.groupby(
        sorted(jobs, key=lambda job: job.stage_index), lambda job: job.stage_index
    ):
        named = {job.name: job for job in stage}
        order = graphlib.TopologicalSorter(
            {name: [need for need in job.needs or () if need in named] for name, job in named.items()}
        )
        yield [named[name] for name in order.static_order()]


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
