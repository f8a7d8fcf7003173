"""The states of a mirror's runs: each event is one statement, and goes where remote_mirror_transitions says.

`none` → `started` → `finished` | `to_retry` | `failed`, from all of which a run begins again.
"""

from collections.abc import Sequence
from typing import Literal

import attrs

from api_server.git.remote.ssh_keys import HostKey
from api_server.mirrors.configuration import host_keys_column
from api_server.mirrors.queries import COLUMNS, Mirror
from api_server.state.database import Executor, Transaction
from api_server.state.statements import Query

#: Runs that follow a failed one by themselves; when the last of them fails too, the mirror has failed.
MAX_RETRIES = 3

Ending = Literal["succeed", "diverge", "retry", "fail"]


BEGIN = Query(
    f"""
    UPDATE remote_mirrors SET
        update_status = transition.after,
        last_update_started_at = %(now)s,
        run = remote_mirrors.run + 1
    FROM remote_mirror_transitions transition, projects
    WHERE remote_mirrors.id = %(id)s
        AND transition.event = 'begin' AND transition.before = remote_mirrors.update_status
        AND projects.id = remote_mirrors.project_id
        AND remote_mirrors.enabled AND projects.repository_access_level <> 'disabled'
    RETURNING {COLUMNS}
    """,
    Mirror,
)


async def begin(transaction: Transaction, mirror_id: int) -> Mirror | None:
    """The mirror with the number of the run that now begins; None where it is gone or disabled."""
    return await transaction.row(BEGIN, id=mirror_id)


@attrs.frozen
class Ended:
    """What became of the mirror: its new `status`, and whether maintainers are to be told of a failure now."""

    status: str
    to_be_told: bool


END = Query(
    """
    UPDATE remote_mirrors SET
        update_status = transition.after,
        last_error = %(last_error)s,
        last_update_at =
            CASE WHEN transition.after = 'to_retry' THEN remote_mirrors.last_update_at ELSE %(now)s END,
        last_successful_update_at =
            CASE WHEN transition.after = 'finished' THEN %(now)s ELSE remote_mirrors.last_successful_update_at END,
        retries = CASE WHEN transition.after = 'to_retry' THEN remote_mirrors.retries + 1 ELSE 0 END,
        failure_told = transition.after = 'failed'
            OR transition.after = 'to_retry' AND remote_mirrors.failure_told
    FROM remote_mirror_transitions transition, remote_mirrors mirror_before
    WHERE remote_mirrors.id = %(id)s AND mirror_before.id = remote_mirrors.id AND remote_mirrors.run = %(run)s
        AND transition.before = remote_mirrors.update_status
        AND transition.event = CASE WHEN %(event)s = 'retry' AND remote_mirrors.retries >= %(max_retries)s
            THEN 'fail' ELSE %(event)s END
    RETURNING remote_mirrors.update_status AS status,
        remote_mirrors.update_status = 'failed' AND NOT mirror_before.failure_told AS to_be_told
    """,
    Ended,
)


async def end(
    transaction: Transaction, mirror_id: int, run: int, event: Ending, last_error: str | None
) -> Ended | None:
    """Ends the run of that number; `retry` is `fail` when there have been enough. None: it does not count any more."""
    return await transaction.row(
        END, id=mirror_id, run=run, event=event, last_error=last_error, max_retries=MAX_RETRIES
    )


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
    await transaction.run(RETARGET, id=mirror_id)


LEARN_HOST_KEYS = """
    UPDATE remote_mirrors SET host_keys = %(host_keys)s
    WHERE id = %(id)s AND run = %(run)s AND host_keys = '[]'
"""


async def learn_host_keys(
    transaction: Transaction, mirror_id: int, run: int, keys: Sequence[HostKey]
) -> None:
    """Pins the keys that the target's server showed, where none were pinned."""
    await transaction.run(LEARN_HOST_KEYS, id=mirror_id, run=run, host_keys=host_keys_column(keys))


UNATTENDED = Query(
    f"""
    SELECT {COLUMNS} FROM remote_mirrors
    WHERE update_status IN ('started', 'to_retry') AND NOT EXISTS (
        SELECT FROM procrastinate_jobs
        WHERE procrastinate_jobs.lock = %(lock_prefix)s || remote_mirrors.id
            AND procrastinate_jobs.status IN ('todo', 'doing'))
    ORDER BY id
    """,
    Mirror,
)


async def unattended(database: Executor, lock_prefix: str) -> list[Mirror]:
    """Mirrors whose run was cut off and that nothing in the queue takes further: no task there has the lock that is
    `lock_prefix` with the mirror's id."""
    return await database.rows(UNATTENDED, lock_prefix=lock_prefix)


ENABLED = Query(
    f"""
    SELECT {COLUMNS} FROM remote_mirrors
    WHERE remote_mirrors.project_id = %(project_id)s AND remote_mirrors.enabled
    ORDER BY remote_mirrors.id
    """,
    Mirror,
)


async def enabled(transaction: Transaction, project_id: int) -> list[Mirror]:
    """Those of a project that run after pushes."""
    return await transaction.rows(ENABLED, project_id=project_id)
