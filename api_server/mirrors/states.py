"""The states of a mirror's runs: each event is one statement, and goes where remote_mirror_transitions says.

`none` → `started` → `finished` | `to_retry` | `failed`, from all of which a run begins again.
"""

import datetime
from collections.abc import Sequence
from typing import Literal

import attrs

from api_server.git.remote.ssh_keys import HostKey
from api_server.mirrors.configuration import host_keys_column
from api_server.state.database import Executor, Row, Transaction
from api_server.state.queue import enqueue

#: The queued task that makes one run.
TASK = "run_remote_mirror"
#: Runs that follow a failed one by themselves; when the last of them fails too, the mirror has failed.
MAX_RETRIES = 3
#: Seconds between the beginnings of two runs; the shorter where only protected branches are pushed.
BACK_OFF_SECONDS = 300
PROTECTED_BACK_OFF_SECONDS = 60
#: Seconds after which a run is over; the first one has everything to push.
RUN_SECONDS = 3600
FIRST_RUN_SECONDS = 3 * 3600
#: The misspelling is GitLab's, and clients may look for it.
STUCK = "The remote mirror took to long to complete."

Ending = Literal["succeed", "diverge", "retry", "fail"]


@attrs.frozen
class Ended:
    """What became of the mirror: its new `status`, and whether maintainers are to be told of a failure now."""

    status: str
    to_be_told: bool


NEXT_START = f"""
    SELECT CASE WHEN last_update_started_at >= now() - back_off THEN now() + back_off END
    FROM remote_mirrors,
        LATERAL (SELECT make_interval(secs => CASE WHEN only_protected_branches
            THEN {PROTECTED_BACK_OFF_SECONDS} ELSE {BACK_OFF_SECONDS} END) AS back_off) waiting
    WHERE id = %(id)s
"""


async def schedule(transaction: Transaction, mirror_id: int) -> None:
    """Queues a run, unless one waits already: at once, or a full back-off from now if the last has just begun."""
    await _enqueue(transaction, mirror_id, await transaction.value(NEXT_START, id=mirror_id))


async def schedule_in(transaction: Transaction, mirror_id: int, seconds: int) -> None:
    """Queues a run, unless one waits already, for that many seconds from now, whenever the last one was."""
    at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    await _enqueue(transaction, mirror_id, at if seconds else None)


async def _enqueue(transaction: Transaction, mirror_id: int, at: datetime.datetime | None) -> None:
    lock = lock_of(mirror_id)
    await enqueue(transaction, TASK, lock=lock, queueing_lock=lock, at=at, mirror_id=mirror_id)


def lock_of(mirror_id: int) -> str:
    """The queue's lock under which a mirror runs once at a time."""
    return f"remote_mirror:{mirror_id}"


BEGIN = """
    UPDATE remote_mirrors SET
        update_status = transition.after,
        last_update_started_at = now(),
        run = remote_mirrors.run + 1
    FROM remote_mirror_transitions transition, projects
    WHERE remote_mirrors.id = %(id)s
        AND transition.event = 'begin' AND transition.before = remote_mirrors.update_status
        AND projects.id = remote_mirrors.project_id
        AND remote_mirrors.enabled AND projects.repository_access_level <> 'disabled'
    RETURNING remote_mirrors.*
"""


async def begin(transaction: Transaction, mirror_id: int) -> Row | None:
    """The mirror's row with the number of the run that now begins; None where it is gone or disabled."""
    return await transaction.row(BEGIN, id=mirror_id)


END = """
    UPDATE remote_mirrors SET
        update_status = transition.after,
        last_error = %(last_error)s,
        last_update_at =
            CASE WHEN transition.after = 'to_retry' THEN remote_mirrors.last_update_at ELSE now() END,
        last_successful_update_at =
            CASE WHEN transition.after = 'finished' THEN now() ELSE remote_mirrors.last_successful_update_at END,
        retries = CASE WHEN transition.after = 'to_retry' THEN remote_mirrors.retries + 1 ELSE 0 END,
        failure_told = transition.after = 'failed'
            OR transition.after = 'to_retry' AND remote_mirrors.failure_told
    FROM remote_mirror_transitions transition, remote_mirrors mirror_before
    WHERE remote_mirrors.id = %(id)s AND mirror_before.id = remote_mirrors.id AND remote_mirrors.run = %(run)s
        AND transition.before = remote_mirrors.update_status
        AND transition.event = CASE WHEN %(event)s = 'retry' AND remote_mirrors.retries >= %(max_retries)s
            THEN 'fail' ELSE %(event)s END
    RETURNING remote_mirrors.update_status, mirror_before.failure_told
"""


async def end(
    transaction: Transaction, mirror_id: int, run: int, event: Ending, last_error: str | None
) -> Ended | None:
    """Ends the run of that number; `retry` is `fail` when there have been enough. None: it does not count any more.

    A run that is to be tried again is queued for then.
    """
    row = await transaction.row(
        END, id=mirror_id, run=run, event=event, last_error=last_error, max_retries=MAX_RETRIES
    )
    if row is None:
        return None
    if row.update_status == "to_retry":
        await schedule(transaction, mirror_id)
    return Ended(row.update_status, row.update_status == "failed" and not row.failure_told)


IS_CURRENT = """
    SELECT EXISTS (SELECT FROM remote_mirrors WHERE id = %(id)s AND run = %(run)s AND update_status = 'started')
"""


async def is_current(database: Executor, mirror_id: int, run: int) -> bool:
    """Whether the run of that number still counts: neither mirror nor project is gone, nor the target changed."""
    return bool(await database.value(IS_CURRENT, id=mirror_id, run=run))


RETARGET = """
    WITH forgotten AS (DELETE FROM remote_mirror_lfs_owed WHERE mirror_id = %(id)s)
    UPDATE remote_mirrors SET
        update_status = transition.after,
        lfs_followed = false,
        run = remote_mirrors.run + 1,
        retries = 0,
        failure_told = false,
        last_error = NULL,
        last_update_at = NULL,
        last_successful_update_at = NULL
    FROM remote_mirror_transitions transition
    WHERE remote_mirrors.id = %(id)s
        AND transition.event = 'retarget' AND transition.before = remote_mirrors.update_status
"""


async def retarget(transaction: Transaction, mirror_id: int) -> None:
    """Forgets what happened at another target or with other credentials; a run that is on its way ends."""
    await transaction.row(RETARGET, id=mirror_id)


LEARN_HOST_KEYS = """
    UPDATE remote_mirrors SET host_keys = %(host_keys)s
    WHERE id = %(id)s AND run = %(run)s AND host_keys = '[]'
"""


async def learn_host_keys(
    transaction: Transaction, mirror_id: int, run: int, keys: Sequence[HostKey]
) -> None:
    """Pins the keys that the target's server showed, where none were pinned."""
    await transaction.row(LEARN_HOST_KEYS, id=mirror_id, run=run, host_keys=host_keys_column(keys))


UNATTENDED = """
    SELECT remote_mirrors.*, update_status = 'started' AND last_update_started_at < now() - make_interval(
        secs => CASE WHEN last_update_at IS NULL THEN %(first_run_seconds)s ELSE %(run_seconds)s END) AS stuck
    FROM remote_mirrors
    WHERE update_status IN ('started', 'to_retry') AND NOT EXISTS (
        SELECT FROM procrastinate_jobs
        WHERE procrastinate_jobs.lock = 'remote_mirror:' || remote_mirrors.id
            AND procrastinate_jobs.status IN ('todo', 'doing'))
    ORDER BY id
"""


async def unattended(database: Executor) -> list[Row]:
    """Mirrors whose run was cut off and that nothing in the queue takes further: their rows, and whether the
    run is over (`stuck`) or can be made again."""
    return await database.rows(UNATTENDED, run_seconds=RUN_SECONDS, first_run_seconds=FIRST_RUN_SECONDS)


def time_limit(row: Row) -> int:
    """Seconds that a run of this mirror may take."""
    return FIRST_RUN_SECONDS if row.last_update_at is None else RUN_SECONDS


ENABLED_OF_PROJECT = """
    SELECT remote_mirrors.id FROM remote_mirrors
    WHERE remote_mirrors.project_id = %(project_id)s AND remote_mirrors.enabled
    ORDER BY remote_mirrors.id
"""


async def schedule_all(transaction: Transaction, project_id: int) -> None:
    """Queues a run of each enabled mirror of a project."""
    for row in await transaction.rows(ENABLED_OF_PROJECT, project_id=project_id):
        await schedule(transaction, row.id)
