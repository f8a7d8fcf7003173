"""One status for many jobs: of a pipeline, of the stages before a job, of what a job needs. Pure."""

from collections.abc import Iterable
from typing import Protocol

from api_server.ci.pipelines.states import COMPLETE, Status


class Part(Protocol):
    """A job as far as its part in the common status goes."""

    @property
    def status(self) -> Status: ...
    @property
    def allow_failure(self) -> bool: ...


_IGNORED = "ignored"
_WARNING = "warning"
#: What does not keep the others from having their common status.
_NEUTRAL = frozenset({_WARNING, _IGNORED})

#: Tried in this order: a status, and those that the parts are confined to for it.
_ONLY: tuple[tuple[Status, frozenset[str]], ...] = (
    ("skipped", frozenset({"skipped", _IGNORED})),
    ("success", frozenset({"success", "skipped"}) | _NEUTRAL),
    ("created", frozenset({"created"}) | _NEUTRAL),
    ("preparing", frozenset({"preparing"}) | _NEUTRAL),
    ("canceled", frozenset({"canceled", "success", "skipped"}) | _NEUTRAL),
    ("pending", frozenset({"pending", "created", "skipped"}) | _NEUTRAL),
)
#: Then in this order: a status, and those of which one is enough for it.
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


def composite(parts: Iterable[Part]) -> Status | None:
    """GitLab's status of jobs taken together; None of no jobs."""
    return status_of(_kinds(parts))


def composite_of_needs(parts: Iterable[Part]) -> Status | None:
    """As `composite`, of the jobs that another one needs: it waits for all of them, and is skipped with any."""
    kinds = _kinds(parts)
    if not kinds <= COMPLETE | _NEUTRAL:
        return "pending"
    if kinds & {"skipped", _IGNORED}:
        return "skipped"
    return status_of(kinds)


def _kinds(parts: Iterable[Part]) -> set[str]:
    return {kind_of(part) for part in parts}


def kind_of(part: Part) -> str:
    """What a job adds to the common status: its own, or that its own does not count."""
    if part.allow_failure and part.status in ("failed", "canceled"):
        return _WARNING
    return _IGNORED if part.allow_failure and part.status == "manual" else part.status


def status_of(kinds: set[str]) -> Status | None:
    """As `composite`, of jobs of these kinds."""
    if not kinds:
        return None
    for status, allowed in _ONLY:
        if kinds <= allowed:
            return status
    for status, sufficient in _ANY:
        if kinds & sufficient:
            return status
    return "failed"
