"""Runs of mirrors: scheduling, execution, recording and reporting, and the recovery of interrupted runs."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import structlog

from api_server.code.ref_queries import MovedProject
from api_server.code.refs import REF_LISTENERS
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.git.remote.access import remove_leftovers
from api_server.git.remote.ssh_keys import HostKey, InvalidHostKeysError, parse_host_keys
from api_server.git.repositories import REPOSITORIES
from api_server.mirrors import queries
from api_server.mirrors.configuration import (
    all_branches,
    branches_matching,
    open_credentials,
    protected_branches,
)
from api_server.mirrors.lfs import LfsTransfer
from api_server.mirrors.pushing import Outcome, Selection, Target, update_target
from api_server.mirrors.queries import Ending, Maintainer, Mirror, MirroredProject
from api_server.namespaces.resources import Project
from api_server.outbound.client import OUTGOING_POLICY, RESOLVER
from api_server.outbound.mail import Mail, queue_mail
from api_server.services import Services
from api_server.state import audit_trail
from api_server.state.audit_trail import SYSTEM, Entity
from api_server.state.database import Transaction
from api_server.state.errors import Unavailable
from api_server.state.queue import enqueue
from api_server.state.secrets import Vault
from api_server.web.errors import invalid
from common.concurrency import end

#: The queued task for one run.
TASK = "run_remote_mirror"
#: With the mirror's id, this is the queue's lock that lets a mirror run only once at a time.
LOCK_PREFIX = "remote_mirror:"
#: Minimum time between the beginnings of two runs, and the shorter one for mirrors of protected branches only.
BACK_OFF = datetime.timedelta(minutes=5)
PROTECTED_BACK_OFF = datetime.timedelta(minutes=1)
#: Maximum duration of a run, in seconds; the first run has everything to push.
RUN_SECONDS = 3600
FIRST_RUN_SECONDS = 3 * 3600


async def run_for_caller(transaction: Transaction, project: Project, mirror: Mirror) -> None:
    """Queue a run as `run_soon` does, unless one is in progress. Raise 400 if the mirror or the repository is
    disabled."""
    if not mirror.enabled or project.repository_access_level == "disabled":
        raise invalid("Cannot proceed with the push mirroring. Please verify your mirror configuration.")
    if mirror.update_status != "started":
        await run_soon(transaction, mirror)


async def run_all_soon(transaction: Transaction, project_id: int) -> None:
    """Queue a run of each enabled mirror of the project as `run_soon` does."""
    for mirror in await queries.enabled_mirrors(transaction, project_id):
        await run_soon(transaction, mirror)


async def run_soon(transaction: Transaction, mirror: Mirror) -> None:
    """Queue a run unless one is queued already: at once, or after the back-off if the last one began within it."""
    back_off = PROTECTED_BACK_OFF if mirror.only_protected_branches else BACK_OFF
    last_start = mirror.last_update_started_at
    has_just_begun = last_start is not None and last_start >= transaction.now - back_off
    await _enqueue(transaction, mirror.id, transaction.now + back_off if has_just_begun else None)


async def run_at_once(transaction: Transaction, mirror_id: int) -> None:
    """Queue a run without a back-off, unless one is queued already."""
    await _enqueue(transaction, mirror_id, None)


async def run_later(transaction: Transaction, mirror_id: int, seconds: int) -> None:
    """Queue a run that begins after that many seconds, unless one is queued already."""
    await _enqueue(transaction, mirror_id, transaction.now + datetime.timedelta(seconds=seconds))


async def _enqueue(transaction: Transaction, mirror_id: int, at: datetime.datetime | None) -> None:
    lock = f"{LOCK_PREFIX}{mirror_id}"
    await enqueue(transaction, TASK, lock=lock, queueing_lock=lock, at=at, mirror_id=mirror_id)


def time_limit(mirror: Mirror) -> int:
    """Return the maximum duration of this mirror's run, in seconds."""
    return FIRST_RUN_SECONDS if mirror.last_update_at is None else RUN_SECONDS


def is_stuck(mirror: Mirror, now: datetime.datetime) -> bool:
    """Return whether the mirror's run has exceeded its `time_limit`."""
    began = mirror.last_update_started_at
    limit = datetime.timedelta(seconds=time_limit(mirror))
    return mirror.update_status == "started" and began is not None and began < now - limit


async def report_failure(transaction: Transaction, mirror: Mirror, last_error: str, *, by_mail: bool) -> None:
    """Record the failure of the mirror. With `by_mail`, also report it to the project's maintainers."""
    project = await queries.project_of(transaction, mirror.project_id)
    target = Entity("Project", mirror.project_id, project.full_path).target(mirror.id, mirror.shown_url)
    await audit_trail.record(transaction, "remote_mirror_update_failed", SYSTEM, target, reason=last_error)
    if by_mail:
        for maintainer in await queries.maintainers(transaction, mirror.project_id):
            await queue_mail(transaction, failure_mail(mirror, project, maintainer, last_error))


def failure_mail(mirror: Mirror, project: MirroredProject, maintainer: Maintainer, last_error: str) -> Mail:
    """Return the mail to one maintainer, with an id of its own for each run."""
    return Mail(
        id=f"remote-mirror-{mirror.id}-{mirror.run}-{maintainer.id}",
        to=maintainer.email,
        subject=f"The push mirror of {project.full_path} failed",
        paragraphs=[
            f"The push mirror of {project.full_path} to {mirror.shown_url} could not be updated:",
            *(line for line in last_error.splitlines() if line.strip()),
            "It is tried again after the next push, or when somebody asks for it. "
            "You get no further mail about it until it has worked again.",
        ],
        links=[(project.full_path, project.url)],
    )


log = structlog.get_logger(__name__)

ResultT = TypeVar("ResultT")

#: Interval in seconds in which a run checks that its mirror and project still exist.
NOTICED_AFTER = 2.0
#: The misspelling is GitLab's, and clients may look for it.
STUCK = "The remote mirror took to long to complete."
UNEXPECTED = "The mirror could not be updated because of a failure of this service; its log has the reason."


@attrs.frozen
class Attempt:
    """The result of a run: the event, the text for `last_error`, and the host keys that the target presented."""

    event: Ending
    last_error: str | None = None
    learnt_host_keys: tuple[str, ...] = ()
    #: An unexpected exception, for the log.
    problem: Exception | None = None


async def run_mirror_once(services: Services, mirror_id: int) -> None:
    """Run the mirror once and record the result. Do nothing if the mirror is disabled or no longer exists."""
    async with services.database.transaction() as transaction:
        mirror = await queries.begin_run(transaction, mirror_id)
    if mirror is not None:
        attempt = await _while_current(services, mirror, _attempt(services, mirror))
        if attempt is not None:
            await record_run(services, mirror, attempt)


async def record_run(services: Services, mirror: Mirror, attempt: Attempt) -> None:
    """End the run of `mirror`. Queue the next run after a failure that is retried; report a final failure, by mail if
    the maintainers have not been notified since the last success."""
    async with services.database.transaction() as transaction:
        keys = _host_keys(mirror.url, attempt.learnt_host_keys)
        ended = await queries.end_run(
            transaction, mirror.id, mirror.run, attempt.event, attempt.last_error, keys
        )
        if ended is not None and ended.status == "to_retry":
            as_it_is_now = await queries.find(transaction, mirror.project_id, mirror.id)
            await run_soon(transaction, as_it_is_now)
        if ended is not None and ended.status == "failed":
            await report_failure(transaction, mirror, attempt.last_error or "", by_mail=ended.to_be_told)
    _log_run(mirror, attempt, "superseded" if ended is None else ended.status)


def _log_run(mirror: Mirror, attempt: Attempt, status: str) -> None:
    if status not in ("to_retry", "failed"):
        log.info("mirror run ended", mirror=mirror.id, project=mirror.project_id, status=status)
        return
    log.warning(
        "mirror run failed",
        mirror=mirror.id,
        project=mirror.project_id,
        host=urlsplit(mirror.url).hostname,
        status=status,
        reason=attempt.last_error,
        exc_info=attempt.problem,
    )


async def attend_runs(services: Services) -> None:
    """Recover interrupted runs: end those that have exceeded their time, and queue the others again.

    Before that, delete the files with secrets that killed processes have left.
    """
    await asyncio.to_thread(remove_leftovers, None)
    for mirror in await queries.unattended_runs(services.database, LOCK_PREFIX):
        if is_stuck(mirror, services.database.now):
            await record_run(services, mirror, Attempt("fail", STUCK))
        else:
            async with services.database.transaction() as transaction:
                await run_at_once(transaction, mirror.id)


async def postpone(services: Services, mirror_id: int, seconds: int) -> None:
    """Queue the run again for later, because this process has no free slot for it."""
    async with services.database.transaction() as transaction:
        await run_later(transaction, mirror_id, seconds)


def target_of(vault: Vault, mirror: Mirror) -> Target:
    """Return the mirror's target with decrypted secrets: either the password or the private key."""
    user, password = open_credentials(vault, mirror.credentials)
    private_key = None
    if mirror.auth_method == "ssh_public_key" and mirror.private_key is not None:
        private_key, password = vault.decrypt(mirror.private_key), None
    return Target(mirror.url, user, password, private_key, tuple(key.line for key in mirror.pinned_keys))


async def selection_of(services: Services, mirror: Mirror) -> Selection:
    """Return the mirror's selection of branches."""
    if mirror.only_protected_branches:
        selects = protected_branches(await queries.protected_names(services.database, mirror.project_id))
    elif mirror.mirror_branch_regex is not None:
        selects = branches_matching(mirror.mirror_branch_regex)
    else:
        selects = all_branches
    return Selection(selects, mirror.keep_divergent_refs)


async def _attempt(services: Services, mirror: Mirror) -> Attempt:
    try:
        outcome = await update_target(
            services[REPOSITORIES].path(mirror.project_id),
            target_of(services.vault, mirror),
            await selection_of(services, mirror),
            policy=await services[OUTGOING_POLICY](),
            resolver=services[RESOLVER],
            time_limit=time_limit(mirror),
            bring_objects=LfsTransfer(services, mirror, time_limit(mirror) / 2),
        )
    except Unavailable:  # the queue tries the task again; without a database no result could be recorded
        raise
    except Exception as problem:
        return Attempt("fail", UNEXPECTED, problem=problem)
    return Attempt(_event(outcome), outcome.last_error, outcome.learnt_host_keys)


async def _while_current(
    services: Services, mirror: Mirror, work: Coroutine[Any, Any, ResultT]
) -> ResultT | None:
    """Return the result of `work`. As soon as the run is superseded, cancel `work` and return None."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=NOTICED_AFTER))[0]:
            if not await queries.is_current_run(services.database, mirror.id, mirror.run):
                return None
        return task.result()
    finally:
        await end(task)


def _event(outcome: Outcome) -> Ending:
    if outcome.failure is not None:
        return "retry"
    return "diverge" if outcome.divergent else "succeed"


def _host_keys(url: str, lines: tuple[str, ...]) -> tuple[HostKey, ...]:
    """Return the keys in the lines that ssh wrote to its `known_hosts`, or none if a line cannot be parsed."""
    parts = urlsplit(url)
    try:
        return parse_host_keys(lines, parts.hostname or "", parts.port)
    except InvalidHostKeysError:
        return ()


#: Maximum number of concurrent runs in one process, so that slow targets do not occupy the whole worker.
AT_ONCE = 5
#: Seconds after which a run without a free slot is tried again.
NO_ROOM_SECONDS = 15


def setup(services: Services) -> None:
    """Register the task that runs a mirror, and the events that trigger it."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def run_mirror(mirror_id: int) -> None:
        if slots.locked():
            await postpone(services, mirror_id, NO_ROOM_SECONDS)
            return
        async with slots:
            await run_mirror_once(services, mirror_id)

    async def attend_mirrors() -> None:
        await attend_runs(services)

    services.queue.add(TASK, run_mirror)
    services.queue.add_periodic("attend_remote_mirrors", "* * * * *", attend_mirrors)
    services[REF_LISTENERS].append(schedule_mirrors)
    services.while_running(_attend_at_start)


async def schedule_mirrors(
    transaction: Transaction, project: MovedProject, _user_id: int | None, updates: Sequence[RefUpdate]
) -> None:
    """Queue runs of the project's mirrors after changes of branches or tags."""
    if any(update.ref.startswith((BRANCHES, TAGS)) for update in updates):
        await run_all_soon(transaction, project.id)


async def _attend_at_start(services: Services) -> AsyncIterator[None]:
    """Recover the runs of killed processes at the start."""
    await attend_runs(services)
    yield
