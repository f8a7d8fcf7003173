"""Current failures with their reasons and remedies in one list, which pages, `doctor` and metrics show."""

import datetime
from typing import Literal, cast, get_args

import attrs

from api_server.operations import queries
from api_server.state import failures
from api_server.state.database import Executor
from api_server.state.failures import RecordedFailure

Kind = Literal["store", "disk", "background", "edge", "mail", "runner", "mirror", "delivery", "task"]
#: The kinds in the order of their severity.
KINDS: tuple[Kind, ...] = get_args(Kind)

#: Maximum number of failures shown of one kind.
MAX_OF_KIND = 100
#: Maximum number of failed tasks of one name that are counted.
_MAX_COUNTED = 1000
#: Maximum number of waiting jobs for which runners are looked up.
_LOOKED_AT = 1000
#: A runner that has been silent this long is absent: it asks at least once in 50 seconds, and its contacts
#: are recorded every 40.
RUNNER_SILENCE = datetime.timedelta(seconds=120)
#: The same for a runner that has a job: it writes at least every four minutes, even if the job is silent.
JOB_SILENCE = datetime.timedelta(seconds=300)

#: An edge that could not be notified is notified again after 5 seconds, which is long enough for edges that
#: start together with the service.
SECOND_TRY = datetime.timedelta(seconds=6)

_PAGES: dict[Kind, str] = {
    "edge": "/admin/edges",
    "runner": "/admin/runners",
    "mirror": "/admin/mirrors",
    "delivery": "/admin/deliveries",
    "task": "/admin/background_tasks",
}
_REMEDIES = {
    "mail": "Check `smtp_url` and the mail server. Emails are retried for an hour; then run `forgelet task retry`.",
    "store": "Check `object_store_url`, its folder or bucket, and the credentials.",
    "disk": "Free space on this disk, or lower `disk_reserve`. Until then, large data is not stored.",
    "background": "See the log of this process for the reason. It is restarted automatically.",
    "edge": "Check that the edge runs at this URL and that its `purge_token` is this service's `edge_purge_token`.",
}
#: The beginnings of reasons that an edge itself gives.
WRONG_STORAGE_TOKEN = "Its storage token is not the one of this service"
NO_ORIGIN = "It cannot reach its origin"
_REMEDIES_OF_EDGES = {
    WRONG_STORAGE_TOKEN: "Enter its `storage_token` in Admin → Settings → Repository → External storage.",
    NO_ORIGIN: "Check that this service runs, and that the edge's `origin` leads to it.",
}


@attrs.frozen(kw_only=True)
class Failure:
    """A failure. `name` says what fails (a path, an address); `since` is the first failure after the last
    success, or that success itself if nothing else is known; `reason` and `remedy` are sentences without
    secrets; `page` is the path of the page that shows and repairs it."""

    kind: Kind
    name: str
    reason: str
    remedy: str
    since: datetime.datetime | None = None
    page: str | None = None


async def failing(database: Executor, now: datetime.datetime) -> list[Failure]:
    """Return all failures at the moment `now`, at most 100 of a kind, the most severe kinds first. Raise
    `Unavailable` if the database is down, which is then the failure."""
    result: list[Failure] = []
    for part in ("store", "disk", "background"):
        result += [_from_record(row) for row in await _of(database, part, now)]
    result += await _edges(database, now)
    result += [_from_record(row) for row in await _of(database, "mail", now)]
    result += await _runners(database, now)
    result += [_silent(row) for row in await queries.silent(database, now - JOB_SILENCE, MAX_OF_KIND)]
    result += [_mirror(row) for row in await queries.mirrors(database, MAX_OF_KIND)]
    result += [_check(row) for row in await queries.checks(database, MAX_OF_KIND)]
    result += [_tasks(row) for row in await queries.failed_tasks(database, MAX_OF_KIND, _MAX_COUNTED)]
    return result


async def _of(database: Executor, part: str, now: datetime.datetime) -> list[RecordedFailure]:
    return await failures.recorded(database, part, heard_since=now - failures.HEARD_OF, limit=MAX_OF_KIND)


def _from_record(record: RecordedFailure) -> Failure:
    kind = cast("Kind", record.part)
    of_edge = (remedy for begins, remedy in _REMEDIES_OF_EDGES.items() if record.reason.startswith(begins))
    return Failure(
        kind=kind,
        name=f"{record.subject} ({record.source})" if record.source else record.subject,
        since=record.first_at,
        reason=_sentence(record.reason),
        remedy=next(of_edge, _REMEDIES[kind]),
        page=_PAGES.get(kind),
    )


async def _edges(database: Executor, now: datetime.datetime) -> list[Failure]:
    """Return the edges that could not be notified, according to the queue, and those that do not report their
    status; each once."""
    by_url = {
        edge.url: Failure(
            kind="edge",
            name=edge.url,
            since=edge.since,
            reason=_sentence(
                f"The edge cannot be notified of changes: {failures.shortened(edge.problem or 'see the log')}"
            ),
            remedy=_REMEDIES["edge"],
            page=_PAGES["edge"],
        )
        for edge in await queries.edges(database, now - SECOND_TRY, MAX_OF_KIND)
    }
    for record in await _of(database, "edge", now):
        by_url.setdefault(record.subject, attrs.evolve(_from_record(record), name=record.subject))
    return list(by_url.values())


async def _runners(database: Executor, now: datetime.datetime) -> list[Failure]:
    return [
        Failure(
            kind="runner",
            name=row.full_path,
            since=row.waits_since,
            reason=_why_unserved(row),
            remedy="Start or register a runner that may run these jobs (`forgelet runner create`)."
            if row.last_heard is None
            else "Restart the runner and check its log.",
            page=_PAGES["runner"],
        )
        for row in await queries.unserved(database, now - RUNNER_SILENCE, MAX_OF_KIND, _LOOKED_AT)
    ]


def _silent(runner: queries.Silent) -> Failure:
    jobs = "1 job" if runner.jobs == 1 else f"{runner.jobs} jobs"
    return Failure(
        kind="runner",
        name=f"{failures.shortened(runner.description or 'runner')} (#{runner.id})",
        since=runner.last_heard,
        reason=f"The runner stopped responding with {jobs}, such as job {runner.job_id} of {runner.full_path}.",
        remedy="Check the runner's log. Cancel and retry the job; otherwise it fails after `runner_timeout` seconds.",
        page=_PAGES["runner"],
    )


def _why_unserved(unserved: queries.Unserved) -> str:
    jobs = "1 pending job" if unserved.jobs == 1 else f"{unserved.jobs} pending jobs"
    tagged = f" with the tags {', '.join(unserved.tags)}" if unserved.tags else ""
    if not unserved.runners:
        return failures.shortened(f"{jobs}{tagged}, but no runner that may run them.")
    runners = "the only runner" if unserved.runners == 1 else f"none of the {unserved.runners} runners"
    contact = "has ever contacted the service" if unserved.runners > 1 else "has never contacted the service"
    if unserved.last_heard is not None:
        moment = f"{unserved.last_heard:%Y-%m-%d %H:%M:%S} UTC"
        contact = (
            f"has contacted the service since {moment}"
            if unserved.runners > 1
            else f"last contacted the service at {moment}"
        )
    return failures.shortened(f"{jobs}{tagged}; {runners} that may run them {contact}.")


def _mirror(mirror: queries.FailingMirror) -> Failure:
    return Failure(
        kind="mirror",
        name=f"{mirror.full_path} to {failures.shortened(mirror.target)}",
        since=mirror.since,
        reason=_sentence(failures.shortened(mirror.last_error)),
        remedy="Correct the target, its URL or the credentials, then sync the mirror.",
        page=_PAGES["mirror"],
    )


def _check(check: queries.FailingCheck) -> Failure:
    is_paused = check.pause_reason is not None
    reason = check.pause_reason or check.problem or "The last delivery attempt failed"
    return Failure(
        kind="delivery",
        name=f"{check.full_path}: {check.name}",
        since=check.since,
        reason=_sentence(failures.shortened(f"Paused: {reason}" if is_paused else reason)),
        remedy="Fix the external service, then resume the status check and redeliver failed deliveries."
        if is_paused
        else "Fix the external service. Queued deliveries are retried automatically.",
        page=_PAGES["delivery"],
    )


def _tasks(failed: queries.FailedTasks) -> Failure:
    count = f"{_MAX_COUNTED} or more" if failed.count >= _MAX_COUNTED else str(failed.count)
    reason = "" if failed.reason is None else f"; the last: {failed.reason}"
    return Failure(
        kind="task",
        name=failed.task,
        since=failed.since,
        reason=_sentence(f"{count} failed permanently{reason}"),
        remedy="Fix the cause, then run `forgelet task retry`, or remove the task.",
        page=_PAGES["task"],
    )


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "\N{HORIZONTAL ELLIPSIS}")) else f"{text}."
