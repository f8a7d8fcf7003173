"""The states of a job and the table of their transitions, which `job_queries.TRANSIT` enforces in PostgreSQL;
the common status of many jobs; and the next jobs of a pipeline. Pure."""

import graphlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, Protocol, get_args

import attrs

Status = Literal[
    "created",
    "waiting_for_resource",
    "preparing",
    "waiting_for_callback",
    "pending",
    "running",
    "success",
    "failed",
    "canceling",
    "canceled",
    "skipped",
    "manual",
    "scheduled",
]
Event = Literal[
    "enqueue",
    "wait_for_resource",
    "prepare",
    "enqueue_waiting_for_resource",
    "enqueue_preparing",
    "actionize",
    "schedule",
    "unschedule",
    "enqueue_scheduled",
    "run",
    "take_back",
    "success",
    "drop",
    "skip",
    "cancel",
    "cancel_gracefully",
    "force_cancel",
    "process",
    "reopen",
    "mirror_manual",
    "mirror_skipped",
]

STATUSES: Final[tuple[Status, ...]] = get_args(Status)
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
#: A job in one of these statuses has finished.
COMPLETE: Final[frozenset[Status]] = frozenset({"success", "failed", "canceled", "skipped"})
#: A runner executes the job, and its token is valid.
EXECUTING: Final[frozenset[Status]] = frozenset({"running", "canceling"})
#: Finished jobs that may be retried.
RETRYABLE: Final[frozenset[Status]] = frozenset({"success", "failed", "canceled", "canceling"})

_WAITING: Final[tuple[Status, ...]] = ("waiting_for_resource", "preparing", "waiting_for_callback")


def _to(status: Status, *sources: Status) -> dict[Status, Status]:
    return dict.fromkeys(sources, status)


#: Event -> status before -> status after. No other transition is possible.
TRANSITIONS: Final[dict[Event, dict[Status, Status]]] = {
    "enqueue": _to("pending", "created", "skipped", "manual", "scheduled"),
    # the same for jobs with a `resource_group`, and for jobs that have to be prepared first
    "wait_for_resource": _to("waiting_for_resource", "created", "skipped", "manual", "scheduled"),
    "prepare": _to("preparing", "created", "skipped", "manual", "scheduled", "waiting_for_resource"),
    "enqueue_waiting_for_resource": _to("pending", "waiting_for_resource"),
    "enqueue_preparing": _to("pending", "preparing"),
    "actionize": _to("manual", "created"),
    "schedule": _to("scheduled", "created"),
    "unschedule": _to("manual", "scheduled"),
    "enqueue_scheduled": _to("pending", "scheduled"),
    "run": _to("running", "pending"),
    # a job that its runner has not acknowledged
    "take_back": _to("pending", "running"),
    "success": _to("success", "created", *_WAITING, "pending", "running") | _to("canceled", "canceling"),
    "drop": _to("failed", "created", *_WAITING, "pending", "running", "manual", "scheduled")
    | _to("canceled", "canceling"),
    "skip": _to("skipped", "created", "waiting_for_resource", "preparing", "pending"),
    "cancel": _to("canceled", "created", *_WAITING, "pending", "running", "scheduled", "manual"),
    # for a runner that finishes `after_script` first
    "cancel_gracefully": _to("canceling", "running"),
    "force_cancel": _to("canceled", "canceling"),
    "process": _to("created", "skipped", "manual"),
    # for a bridge: its downstream pipeline runs again; or it is manual or skipped, which `mirror` takes over
    "reopen": _to("running", "success", "failed", "canceled", "manual", "skipped"),
    "mirror_manual": _to("manual", "running"),
    "mirror_skipped": _to("skipped", "running"),
}


class StatusPart(Protocol):
    """The attributes of a job that contribute to the common status."""

    @property
    def status(self) -> Status: ...
    @property
    def allow_failure(self) -> bool: ...


_IGNORED = "ignored"
_WARNING = "warning"
#: Kinds that do not affect the common status of the others.
_NEUTRAL = frozenset({_WARNING, _IGNORED})

#: Tried in this order: a status, and the kinds that all parts must belong to.
_ONLY: tuple[tuple[Status, frozenset[str]], ...] = (
    ("skipped", frozenset({"skipped", _IGNORED})),
    ("success", frozenset({"success", "skipped"}) | _NEUTRAL),
    ("created", frozenset({"created"}) | _NEUTRAL),
    ("preparing", frozenset({"preparing"}) | _NEUTRAL),
    ("canceled", frozenset({"canceled", "success", "skipped"}) | _NEUTRAL),
    ("pending", frozenset({"pending", "created", "skipped"}) | _NEUTRAL),
)
#: Tried next, in this order: a status, and the kinds of which one part is enough.
_ANY: tuple[tuple[Status, frozenset[str]], ...] = (
    ("canceling", frozenset({"canceling"})),
    ("running", frozenset({"running", "pending"})),
    ("waiting_for_resource", frozenset({"waiting_for_resource"})),
    ("waiting_for_callback", frozenset({"waiting_for_callback"})),
    ("manual", frozenset({"manual"})),
    ("scheduled", frozenset({"scheduled"})),
    ("preparing", frozenset({"preparing"})),
    ("running", frozenset({"created"})),
)


def composite_status(parts: Iterable[StatusPart]) -> Status | None:
    """Return GitLab's status of jobs taken together; None without jobs."""
    return _status_of_kinds(_status_kinds(parts))


def composite_status_of_needs(parts: Iterable[StatusPart]) -> Status | None:
    """Return the status like `composite_status`, for the jobs that another one needs: it waits for all of
    them, and is skipped if any is."""
    kinds = _status_kinds(parts)
    if not kinds <= COMPLETE | _NEUTRAL:
        return "pending"
    if kinds & {"skipped", _IGNORED}:
        return "skipped"
    return _status_of_kinds(kinds)


def _status_kinds(parts: Iterable[StatusPart]) -> set[str]:
    return {_status_kind(part) for part in parts}


def _status_kind(part: StatusPart) -> str:
    """Return the contribution of a job to the common status: its own status, or a neutral kind."""
    if part.allow_failure and part.status in ("failed", "canceled"):
        return _WARNING
    return _IGNORED if part.allow_failure and part.status == "manual" else part.status


def _status_of_kinds(kinds: set[str]) -> Status | None:
    """Return the status like `composite_status`, for jobs of these kinds."""
    if not kinds:
        return None
    for status, allowed in _ONLY:
        if kinds <= allowed:
            return status
    for status, sufficient in _ANY:
        if kinds & sufficient:
            return status
    return "failed"


#: `when` -> statuses of the earlier jobs with which the job runs; with others it is skipped.
_RUNS_AFTER: Mapping[str, frozenset[Status]] = {
    "on_success": frozenset({"success", "skipped"}),
    "on_failure": frozenset({"failed"}),
    "always": COMPLETE,
    "manual": frozenset({"success", "skipped"}),
    "delayed": frozenset({"success", "skipped"}),
}


@attrs.frozen(kw_only=True)
class OrderedJob:
    """The attributes of a job that determine the order of its pipeline."""

    id: int
    project_id: int
    #: `external`: reported by another system; this service does not change its state.
    kind: Literal["build", "bridge", "external"]
    status: Status
    name: str
    stage_index: int
    #: Names of jobs; None: all jobs of earlier stages.
    needs: list[str] | None
    when_run: str
    allow_failure: bool
    resource_group: str | None
    #: Whether its runner supports the status `canceling`.
    cancels_gracefully: bool


def next_events(jobs: Iterable[OrderedJob]) -> list[tuple[int, Event]]:
    """Return the ids and events of the jobs in status `created` whose turn has come, or that will never run.

    `jobs` are the latest ones of the pipeline. Each is considered once, after all that it waits for, so that
    skipped jobs let later ones proceed in the same call: the result is complete, and another call after
    applying it returns nothing.
    """
    by_name: dict[str, OrderedJob] = {}
    events: list[tuple[int, Event]] = []
    kinds_before: set[str] = set()  # the kinds of the jobs of earlier stages
    for stage in _in_order(jobs):
        before = _status_of_kinds(kinds_before) or "success"
        for job in stage:
            by_name[job.name] = job
            if job.status != "created":
                continue
            previous = before if job.needs is None else _status_of_needs(job.needs, by_name)
            if previous in COMPLETE:
                event = _event(job, previous)
                events.append((job.id, event))
                by_name[job.name] = attrs.evolve(job, status=TRANSITIONS[event][job.status])
        kinds_before |= {_status_kind(by_name[job.name]) for job in stage}
    return events


def enqueuing(job: OrderedJob) -> Event:
    """Return the event that enqueues a job for runners."""
    return "enqueue" if job.resource_group is None else "wait_for_resource"


def dependents(jobs: Sequence[OrderedJob], of: Iterable[str]) -> set[str]:
    """Return the names of the jobs that come after those named: by stage for jobs without `needs`, otherwise
    by need, transitively."""
    reached = set(of)
    first = min((job.stage_index for job in jobs if job.name in reached), default=None)
    later: set[str] = set()
    for job in itertools.chain.from_iterable(_in_order(jobs)):
        if job.name in reached:
            continue
        if job.needs is not None:
            comes_after = not reached.isdisjoint(job.needs)
        else:
            comes_after = first is not None and job.stage_index > first
        if comes_after:
            reached.add(job.name)
            later.add(job.name)
    return later


def _in_order(jobs: Iterable[OrderedJob]) -> Iterator[list[OrderedJob]]:
    """Yield the jobs by stage, each after the jobs of the same stage that it needs."""
    for _, stage in itertools.groupby(
        sorted(jobs, key=lambda job: job.stage_index), lambda job: job.stage_index
    ):
        by_name = {job.name: job for job in stage}
        order = graphlib.TopologicalSorter(
            {name: [need for need in job.needs or () if need in by_name] for name, job in by_name.items()}
        )
        yield [by_name[name] for name in order.static_order()]


def _status_of_needs(needs: Iterable[str], by_name: Mapping[str, OrderedJob]) -> Status:
    return composite_status_of_needs(by_name[name] for name in needs if name in by_name) or "success"


def _event(job: OrderedJob, previous: Status) -> Event:
    accepted = _RUNS_AFTER[job.when_run]
    if job.needs is not None and job.when_run != "always":
        accepted -= {"skipped"}
    if previous not in accepted:
        return "skip"
    if job.when_run == "manual":
        return "actionize"
    return "schedule" if job.when_run == "delayed" else enqueuing(job)
