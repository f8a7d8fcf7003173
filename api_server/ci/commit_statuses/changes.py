"""Setting a commit status, in the caller's transaction; refusals are in GitLab's words."""

import datetime
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import attrs
import orjson

from api_server.ci.commit_statuses import queries
from api_server.ci.commit_statuses.queries import LatestJob
from api_server.ci.pipelines import creation_queries, transitions
from api_server.ci.pipelines.states import Event
from api_server.state.database import Transaction
from api_server.state.listing import Quota
from api_server.web.errors import ApiError, invalid, not_found, too_many_requests
from api_server.web.rate_limits import RateLimiter

State = Literal["pending", "running", "success", "failed", "canceled", "skipped"]

_EVENTS: Mapping[State, Event] = {
    "pending": "enqueue",
    "running": "run",
    "success": "success",
    "failed": "drop",
    "canceled": "cancel",
    "skipped": "skip",
}
_MAX_CHARACTERS = 255
_JOBS = Quota("jobs", "pipeline_id")


@attrs.frozen(kw_only=True)
class ReportedStatus:
    """A report about a commit. `name` distinguishes it from other reports."""

    state: State
    name: str
    target_url: str | None
    description: str | None
    coverage: float | None


@attrs.frozen(kw_only=True)
class Subject:
    """The commit, the ref that the status is for (a short name, or that of a merge request's head), and
    whether that is a tag.

    The protection of the branch or tag `judged_by` decides who may set the status. `pipeline_id` is the
    requested pipeline, `data` the commit as answers show it.
    """

    project_id: int
    sha: str
    ref: str
    tag: bool
    judged_by: str
    protected: bool
    pipeline_id: int | None
    data: dict[str, Any]


def no_such_pipeline() -> ApiError:
    return not_found("Pipeline for pipeline_id, sha and ref")


def check(reported: ReportedStatus) -> None:
    """Raise 400 if the status cannot be stored."""
    problems: dict[str, list[str]] = {}
    if not reported.name.strip():
        problems["name"] = ["can't be blank"]
    if reported.target_url and not _is_address(reported.target_url):
        problems["target_url"] = ["is blocked: Only allowed schemes are http, https"]
    for field in ("name", "target_url", "description"):
        if len(getattr(reported, field) or "") > _MAX_CHARACTERS:
            problems.setdefault(field, []).append(f"is too long (maximum is {_MAX_CHARACTERS} characters)")
    if problems:
        raise invalid(problems)


def _is_address(text: str) -> bool:
    try:
        address = urlsplit(text)
    except ValueError:
        return False
    return address.scheme in ("http", "https") and bool(address.hostname)


async def set_status(
    transaction: Transaction,
    subject: Subject,
    reported: ReportedStatus,
    user_id: int,
    *,
    limit: int,
    pipelines: RateLimiter,
    archived_before: datetime.datetime | None,
) -> str:
    """Set a status and return it as the API shows it, after updating its pipeline's status. It joins the
    newest pipeline of the commit and ref, or a new one, which `pipelines` counts. Raise 400 if the previous
    state does not allow the new one, 404 if the requested pipeline does not exist, 422 if it would have more
    than `limit` jobs, and 429."""
    pipeline = await queries.lock_joined(
        transaction,
        subject.project_id,
        subject.sha,
        ref=subject.ref,
        tag=subject.tag,
        pipeline_id=subject.pipeline_id,
        archived_before=archived_before,
    )
    if pipeline is None and subject.pipeline_id is not None:
        raise no_such_pipeline()
    if pipeline is None and (wait := pipelines.retry_after((subject.project_id, user_id, subject.sha))):
        raise too_many_requests(wait)
    pipeline_id = await _new_pipeline(transaction, subject, user_id) if pipeline is None else pipeline.id
    status = await _open(transaction, pipeline_id, reported.name, user_id, limit)
    await _move(transaction, status, reported.state)
    entity = await queries.describe(
        transaction,
        status.id,
        target_url=reported.target_url or None,
        description=reported.description or None,
        coverage=reported.coverage,
    )
    await transitions.refresh(transaction, pipeline_id)
    return entity


async def _new_pipeline(transaction: Transaction, subject: Subject, user_id: int) -> int:
    return await creation_queries.create_pipeline(
        transaction,
        project_id=subject.project_id,
        user_id=user_id,
        source="external",
        ref=subject.ref,
        tag=subject.tag,
        protected=subject.protected,
        sha=subject.sha,
        commit=orjson.dumps(subject.data).decode(),
        committed_at=subject.data["committed_date"],
        status="created",
    )


async def _open(transaction: Transaction, pipeline_id: int, name: str, user_id: int, limit: int) -> LatestJob:
    """Return the status that the user has not ended yet, or a new one that replaces the last of that name."""
    latest = await queries.latest_of_name(transaction, pipeline_id, name)
    if latest is not None and latest.kind != "external":
        raise invalid({"name": ["has already been taken"]})
    if latest is not None and latest.status in ("pending", "running") and latest.user_id == user_id:
        return latest
    if latest is not None:
        await queries.retire(transaction, latest.id)
    added = await queries.add(transaction, pipeline_id, name, user_id)
    if await _JOBS.is_exceeded(transaction, pipeline_id, limit):
        raise ApiError(422, {"message": "The number of jobs has exceeded the limit"})
    return added


async def _move(transaction: Transaction, status: LatestJob, state: State) -> None:
    event = _EVENTS[state]
    if event == "run":  # via pending, unless it is already pending
        await transitions.transit(transaction, [status.id], "enqueue")
    if not await transitions.transit(transaction, [status.id], event, failure_reason="api_failure"):
        reason = f'Status cannot transition via "{event}"'
        raise invalid(f"Cannot transition status via :{event} from :{status.status} (Reason(s): {reason})")
