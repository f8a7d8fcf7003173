"""The states of a job and the one table of what may follow what; `job_queries.TRANSIT` has PostgreSQL enforce it."""

from typing import Final, Literal, get_args

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
#: Nothing happens to these any more by itself.
COMPLETE: Final[frozenset[Status]] = frozenset({"success", "failed", "canceled", "skipped"})
#: In a runner's hands: the job's token is valid.
EXECUTING: Final[frozenset[Status]] = frozenset({"running", "canceling"})
#: A finished job of these may be run once more.
RETRYABLE: Final[frozenset[Status]] = frozenset({"success", "failed", "canceled", "canceling"})

_WAITING: Final[tuple[Status, ...]] = ("waiting_for_resource", "preparing", "waiting_for_callback")


def _to(status: Status, *sources: Status) -> dict[Status, Status]:
    return dict.fromkeys(sources, status)


#: Event -> status before -> status after. What is not here does not happen.
TRANSITIONS: Final[dict[Event, dict[Status, Status]]] = {
    "enqueue": _to("pending", "created", "skipped", "manual", "scheduled"),
    # the same for jobs with a `resource_group`, and for jobs that something has to be prepared for
    "wait_for_resource": _to("waiting_for_resource", "created", "skipped", "manual", "scheduled"),
    "prepare": _to("preparing", "created", "skipped", "manual", "scheduled", "waiting_for_resource"),
    "enqueue_waiting_for_resource": _to("pending", "waiting_for_resource"),
    "enqueue_preparing": _to("pending", "preparing"),
    "actionize": _to("manual", "created"),
    "schedule": _to("scheduled", "created"),
    "unschedule": _to("manual", "scheduled"),
    "enqueue_scheduled": _to("pending", "scheduled"),
    "run": _to("running", "pending"),
    # of a runner that never said a word
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
    # of a bridge whose downstream pipeline runs, again; or waits for somebody, or was skipped, as `mirror` takes over
    "reopen": _to("running", "success", "failed", "manual", "skipped"),
    "mirror_manual": _to("manual", "running"),
    "mirror_skipped": _to("skipped", "running"),
}
