"""When mirrors run, and for how long."""

import datetime

from api_server.mirrors import run_queries
from api_server.mirrors.queries import Mirror
from api_server.namespaces.resources import Project
from api_server.state.database import Transaction
from api_server.state.queue import enqueue
from api_server.web.errors import invalid

#: The queued task that makes one run.
TASK = "run_remote_mirror"
#: With the mirror's id: the queue's lock under which it runs once at a time.
LOCK_PREFIX = "remote_mirror:"
#: Between the beginnings of two runs; the shorter where only protected branches are pushed.
BACK_OFF = datetime.timedelta(minutes=5)
PROTECTED_BACK_OFF = datetime.timedelta(minutes=1)
#: Seconds after which a run is over; the first one has everything to push.
RUN_SECONDS = 3600
FIRST_RUN_SECONDS = 3 * 3600


async def run_for_caller(transaction: Transaction, project: Project, mirror: Mirror) -> None:
    """As `run_soon`; while a run is on its way there is nothing to queue. Raises 400 for a mirror that does not run."""
    if not mirror.enabled or project.repository_access_level == "disabled":
        raise invalid("Cannot proceed with the push mirroring. Please verify your mirror configuration.")
    if mirror.update_status != "started":
        await run_soon(transaction, mirror)


async def run_all_soon(transaction: Transaction, project_id: int) -> None:
    """Each enabled mirror of a project, as `run_soon`."""
    for mirror in await run_queries.enabled(transaction, project_id):
        await run_soon(transaction, mirror)


async def run_soon(transaction: Transaction, mirror: Mirror) -> None:
    """Queues a run, unless one waits already: at once, or a full back-off from now if the last has just begun."""
    back_off = PROTECTED_BACK_OFF if mirror.only_protected_branches else BACK_OFF
    began = mirror.last_update_started_at
    has_just_begun = began is not None and began >= transaction.now - back_off
    await _enqueue(transaction, mirror.id, transaction.now + back_off if has_just_begun else None)


async def run_at_once(transaction: Transaction, mirror_id: int) -> None:
    """Queues a run, unless one waits already, whenever the last one was."""
    await _enqueue(transaction, mirror_id, None)


async def run_later(transaction: Transaction, mirror_id: int, seconds: int) -> None:
    """Likewise, for that many seconds from now."""
    await _enqueue(transaction, mirror_id, transaction.now + datetime.timedelta(seconds=seconds))


async def _enqueue(transaction: Transaction, mirror_id: int, at: datetime.datetime | None) -> None:
    lock = f"{LOCK_PREFIX}{mirror_id}"
    await enqueue(transaction, TASK, lock=lock, queueing_lock=lock, at=at, mirror_id=mirror_id)


def time_limit(mirror: Mirror) -> int:
    """Seconds that a run of this mirror may take."""
    return FIRST_RUN_SECONDS if mirror.last_update_at is None else RUN_SECONDS


def is_stuck(mirror: Mirror, now: datetime.datetime) -> bool:
    """Whether its run has taken longer than that."""
    began = mirror.last_update_started_at
    limit = datetime.timedelta(seconds=time_limit(mirror))
    return mirror.update_status == "started" and began is not None and began < now - limit
