# mypy: disable-error-code="empty-body"
"""Statements about current failures, and about queued tasks: listing and changing them."""

import datetime
from typing import Literal

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.statements import Query


@attrs.frozen
class FailingMirror:
    """A mirror whose last run has failed. `target` is its URL without credentials."""

    full_path: str
    target: str
    since: datetime.datetime | None
    last_error: str


@statement("""
    SELECT projects.full_path, remote_mirrors.url AS target,
        coalesce(remote_mirrors.last_successful_update_at, remote_mirrors.created_at) AS since,
        remote_mirrors.last_error
    FROM (
        SELECT * FROM remote_mirrors WHERE last_error IS NOT NULL AND enabled
        ORDER BY id DESC LIMIT %(limit)s::integer
    ) remote_mirrors JOIN projects ON projects.id = remote_mirrors.project_id
    ORDER BY remote_mirrors.id DESC
    """)
async def mirrors(database: Executor, limit: int) -> list[FailingMirror]:
    """Return enabled mirrors whose last run has failed, the newest mirrors first; `since` is their last
    success."""


@attrs.frozen
class FailingCheck:
    """A status check whose receiver fails, or that is paused."""

    full_path: str
    name: str
    since: datetime.datetime | None
    problem: str | None
    pause_reason: str | None


@statement("""
    SELECT projects.full_path, checks.name, coalesce(checks.failing_since, checks.paused_at) AS since,
        checks.problem, checks.pause_reason
    FROM (
        SELECT * FROM external_status_checks WHERE failing_since IS NOT NULL OR paused_at IS NOT NULL
        ORDER BY id DESC LIMIT %(limit)s::integer
    ) checks JOIN projects ON projects.id = checks.project_id
    ORDER BY checks.id DESC
    """)
async def checks(database: Executor, limit: int) -> list[FailingCheck]:
    """Return status checks to which deliveries fail or are paused, the newest checks first."""


@attrs.frozen
class FailingEdge:
    """An edge that could not be notified of changes."""

    url: str
    since: datetime.datetime | None
    problem: str | None


@statement("""
    SELECT url, failing_since AS since, problem FROM edges
    WHERE failing_since < %(since)s ORDER BY id LIMIT %(limit)s::integer
    """)
async def edges(database: Executor, since: datetime.datetime, limit: int) -> list[FailingEdge]:
    """Return the edges that could not be notified before `since`."""


@attrs.frozen
class FailedTasks:
    """The tasks of one name that have failed permanently: their number, and the reason of the newest failure,
    if known."""

    task: str
    count: int
    since: datetime.datetime | None
    reason: str | None


#: Names are found one after the other, so that many tasks of one name cost no more than one; of each name at
#: most %(counted)s are counted.
@statement("""
    WITH RECURSIVE names (task) AS (
        (SELECT jobs.task_name FROM procrastinate_jobs jobs WHERE jobs.status = 'failed'
        ORDER BY jobs.task_name LIMIT 1)
        UNION ALL
        SELECT (
            SELECT jobs.task_name FROM procrastinate_jobs jobs
            WHERE jobs.status = 'failed' AND jobs.task_name > names.task ORDER BY jobs.task_name LIMIT 1
        ) FROM names WHERE names.task IS NOT NULL
    )
    SELECT names.task, counted.count, known.last_at AS since, known.reason
    FROM names
    CROSS JOIN LATERAL (
        SELECT count(*) AS count, max(bounded.id) AS newest FROM (
            SELECT jobs.id FROM procrastinate_jobs jobs WHERE jobs.status = 'failed' AND jobs.task_name = names.task
            ORDER BY jobs.id DESC LIMIT %(counted)s::integer
        ) bounded
    ) counted
    LEFT JOIN operations_failures known
        ON known.part = 'task' AND known.subject = counted.newest::text AND known.source = ''
    WHERE names.task IS NOT NULL ORDER BY names.task LIMIT %(limit)s::integer
    """)
async def failed_tasks(database: Executor, limit: int, counted: int) -> list[FailedTasks]:
    """Return the failed tasks by name; counting stops at `counted`."""


@attrs.frozen
class Unserved:
    """Jobs of a project that wait although none of the runners that may take them is present: the number of
    these runners, and the last contact with one of them."""

    full_path: str
    jobs: int
    waits_since: datetime.datetime | None
    runners: int
    last_heard: datetime.datetime | None
    tags: list[str]


#: The rules for the jobs of a runner are in `CHOOSE_JOB` of ci/runners/job_queries.py. Only the oldest
#: `looked_at` waiting jobs are examined: the others wait behind them.
@statement("""
    WITH waiting AS MATERIALIZED (
        SELECT jobs.project_id, jobs.tag_list, jobs.protected, coalesce(jobs.queued_at, jobs.created_at) AS queued_at
        FROM jobs WHERE jobs.status = 'pending' AND jobs.kind = 'build'
        ORDER BY jobs.id LIMIT %(looked_at)s::integer
    ),
    wanted AS (
        SELECT project_id, tag_list, protected, count(*) AS jobs, min(queued_at) AS waits_since
        FROM waiting GROUP BY project_id, tag_list, protected
    )
    SELECT projects.full_path, wanted.jobs, wanted.waits_since, able.runners, able.last_heard,
        wanted.tag_list AS tags
    FROM wanted JOIN projects ON projects.id = wanted.project_id
    JOIN namespaces ON namespaces.id = projects.namespace_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS runners, max(runners.contacted_at) AS last_heard FROM (
            SELECT * FROM runners WHERE runners.runner_type = 'instance_type'
            UNION ALL
            SELECT * FROM runners WHERE runners.namespace_id = ANY (namespaces.lineage)
            UNION ALL
            SELECT runners.* FROM runner_projects JOIN runners ON runners.id = runner_projects.runner_id
            WHERE runner_projects.project_id = projects.id AND runners.runner_type = 'project_type'
        ) runners
        WHERE runners.active AND wanted.tag_list <@ runners.tag_list
            AND (wanted.tag_list <> '{}' OR runners.run_untagged)
            AND (wanted.protected OR runners.access_level <> 'ref_protected')
    ) able
    WHERE projects.builds_access_level <> 'disabled' AND NOT projects.archived
        AND (able.last_heard IS NULL OR able.last_heard < %(silent_since)s::timestamptz)
    ORDER BY wanted.waits_since LIMIT %(limit)s::integer
    """)
async def unserved(
    database: Executor, silent_since: datetime.datetime, limit: int, looked_at: int
) -> list[Unserved]:
    """Return projects whose jobs nobody takes: there has been no contact with a suitable runner since a
    moment."""


@attrs.frozen
class Silent:
    """A runner that is silent about jobs that it has: their number, the first one, and the last contact about
    it."""

    id: int
    description: str | None
    jobs: int
    job_id: int
    full_path: str
    last_heard: datetime.datetime


#: Silence counts only while the service was able to listen, see ci/jobs/upkeep.py.
@statement("""
    SELECT runners.id, runners.description, found.jobs, found.job_id, projects.full_path, found.last_heard
    FROM (
        SELECT jobs.runner_id, count(*) AS jobs, min(jobs.id) AS job_id, max(jobs.contacted_at) AS last_heard
        FROM jobs
        WHERE jobs.status IN ('running', 'canceling') AND jobs.kind = 'build'
            AND jobs.contacted_at < %(silent_since)s::timestamptz
            AND EXISTS (SELECT FROM runner_watch WHERE one AND listening_since <= %(silent_since)s::timestamptz)
        GROUP BY jobs.runner_id ORDER BY jobs.runner_id LIMIT %(limit)s::integer
    ) found
    JOIN runners ON runners.id = found.runner_id
    JOIN jobs ON jobs.id = found.job_id JOIN projects ON projects.id = jobs.project_id
    ORDER BY runners.id
    """)
async def silent(database: Executor, silent_since: datetime.datetime, limit: int) -> list[Silent]:
    """Return runners that have been silent since a moment about jobs that they have."""


Status = Literal["todo", "doing", "failed"]


@attrs.frozen
class QueuedTask:
    """A task in the queue. `due_at` is null if it is due at once, `arguments` are JSON, `reason` and
    `failed_at` describe the last failed attempt."""

    id: int
    name: str
    status: str
    attempts: int
    due_at: datetime.datetime | None
    lock: str | None
    arguments: str
    reason: str | None
    failed_at: datetime.datetime | None


def _list(order: str, beyond: str) -> Query[QueuedTask]:
    return Query(
        f"""
        SELECT jobs.id, jobs.task_name AS name, jobs.status::text AS status, jobs.attempts,
            jobs.scheduled_at AS due_at, jobs.lock, left(jobs.args::text, 1000) AS arguments,
            known.reason, known.last_at AS failed_at
        FROM (
            SELECT * FROM procrastinate_jobs jobs
            WHERE jobs.status = %(status)s AND (%(name)s::text IS NULL OR jobs.task_name = %(name)s)
                AND (%(beyond)s::bigint IS NULL OR jobs.id {beyond} %(beyond)s)
            ORDER BY jobs.id {order} LIMIT %(limit)s::integer
        ) jobs
        LEFT JOIN operations_failures known
            ON known.part = 'task' AND known.subject = jobs.id::text AND known.source = ''
        ORDER BY jobs.id {order}
        """,
        QueuedTask,
    )


OLDEST_FIRST, NEWEST_FIRST = _list("ASC", ">"), _list("DESC", "<")


async def list_tasks(
    database: Executor, status: Status, name: str | None, beyond: int | None, limit: int
) -> list[QueuedTask]:
    """Return the tasks with a status and, if given, a name: failed ones newest first, others oldest first,
    from beyond the id of the last one seen."""
    statement = NEWEST_FIRST if status == "failed" else OLDEST_FIRST
    return await database.rows(statement, status=status, name=name, beyond=beyond, limit=limit)


@attrs.frozen
class LockedTask:
    name: str
    status: str


@statement("""
    SELECT task_name AS name, status::text AS status FROM procrastinate_jobs WHERE id = %(task_id)s FOR UPDATE
    """)
async def lock_task(transaction: Transaction, task_id: int) -> LockedTask | None:
    """Lock a task until the transaction ends, and return it, or None if it no longer exists."""


@statement("""
    UPDATE procrastinate_jobs SET status = 'todo', attempts = 0, scheduled_at = NULL
    WHERE id = %(task_id)s AND NOT EXISTS (
        SELECT FROM procrastinate_jobs other
        WHERE other.queueing_lock = procrastinate_jobs.queueing_lock AND other.status = 'todo')
""")
async def retry_task(transaction: Transaction, task_id: int) -> bool:
    """Make a failed task due at once, as if it had never been tried. Return False if the same work is already
    waiting."""


@statement("UPDATE procrastinate_jobs SET scheduled_at = NULL WHERE id = %(task_id)s")
async def make_due(transaction: Transaction, task_id: int) -> None:
    """Make a waiting task due at once."""


@statement("DELETE FROM procrastinate_jobs WHERE id = %(task_id)s")
async def remove_task(transaction: Transaction, task_id: int) -> None: ...


FORGET = """
    DELETE FROM procrastinate_jobs WHERE id IN (
        SELECT jobs.id FROM procrastinate_jobs jobs
        LEFT JOIN operations_failures known
            ON known.part = 'task' AND known.subject = jobs.id::text AND known.source = ''
        WHERE jobs.status = 'failed' AND coalesce(known.last_at, (
            SELECT max(events.at) FROM procrastinate_events events WHERE events.job_id = jobs.id
        ), '-infinity') < %(before)s::timestamptz
        ORDER BY jobs.id LIMIT %(limit)s::integer
    )
"""


async def forget_tasks(transaction: Transaction, before: datetime.datetime, limit: int) -> int:
    """Remove at most `limit` tasks that have failed permanently before a moment, and return their number."""
    return await transaction.run(FORGET, before=before, limit=limit)


@statement("""
    DELETE FROM operations_failures known WHERE known.part = 'task' AND NOT EXISTS (
        SELECT FROM procrastinate_jobs WHERE procrastinate_jobs.id = known.subject::bigint)
""")
async def forget_reasons(transaction: Transaction) -> None:
    """Remove the reasons of tasks that no longer exist."""
