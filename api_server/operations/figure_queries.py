# mypy: disable-error-code="empty-body"
"""Statements for figures of the whole instance, now and over time."""

import datetime
from collections.abc import Mapping, Sequence

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement


@attrs.frozen
class KindCount:
    """The number of rows with a status."""

    status: str
    count: int


@statement("""
    SELECT status, count(*) AS count FROM jobs
    WHERE kind = 'build' AND status NOT IN ('success', 'failed', 'canceled', 'skipped', 'manual') GROUP BY status
    """)
async def jobs(database: Executor) -> list[KindCount]:
    """Return the numbers of unfinished builds by status."""


@statement("""
    SELECT status, count(*) AS count FROM jobs
    WHERE kind = 'build' AND finished_at > %(since)s::timestamptz GROUP BY status
    """)
async def finished(database: Executor, since: datetime.datetime) -> list[KindCount]:
    """Return the numbers of builds that have finished since a moment, by status."""


@attrs.frozen
class QueueOfTask:
    """The tasks of one name: the number of waiting ones, the time since which the oldest has been due, and
    the number of failed ones."""

    task: str
    waiting: int
    due_since: datetime.datetime | None
    failed: int


#: One pass over each index: the planner assumes that names are frequent, so that look-ups by name would take
#: seconds for rare ones.
@statement("""
    WITH waiting AS MATERIALIZED (
        SELECT jobs.task_name, count(*) AS count,
            min(jobs.id) FILTER (WHERE jobs.scheduled_at IS NULL OR jobs.scheduled_at <= %(now)s) AS oldest
        FROM procrastinate_jobs jobs WHERE jobs.status = 'todo' GROUP BY jobs.task_name
    ),
    failed AS MATERIALIZED (
        SELECT jobs.task_name, count(*) AS count FROM procrastinate_jobs jobs
        WHERE jobs.status = 'failed' GROUP BY jobs.task_name
    )
    SELECT task, coalesce(waiting.count, 0) AS waiting, (
            SELECT coalesce(jobs.scheduled_at, (
                SELECT min(events.at) FROM procrastinate_events events WHERE events.job_id = jobs.id
            )) FROM procrastinate_jobs jobs WHERE jobs.id = waiting.oldest
        ) AS due_since, coalesce(failed.count, 0) AS failed
    FROM (
        SELECT unnest(%(tasks)s::text[]) AS task
        UNION SELECT task_name FROM waiting UNION SELECT task_name FROM failed
    ) names
    LEFT JOIN waiting ON waiting.task_name = task
    LEFT JOIN failed ON failed.task_name = task
    ORDER BY task
    """)
async def queue(database: Executor, tasks: list[str]) -> list[QueueOfTask]:
    """Return the queue by task: for these names, and for names of other versions that occur in it."""


@attrs.frozen
class Deliveries:
    """The numbers of queued deliveries, of due ones, of checks with a failing receiver, and of paused
    checks."""

    queued: int
    due: int
    failing: int
    paused: int


@statement("""
    SELECT deliveries.queued, deliveries.due, checks.failing, checks.paused FROM (
        SELECT count(*) AS queued, count(*) FILTER (WHERE next_attempt_at <= %(now)s) AS due
        FROM status_check_deliveries WHERE next_attempt_at IS NOT NULL
    ) deliveries, (
        SELECT count(*) FILTER (WHERE paused_at IS NULL) AS failing,
            count(*) FILTER (WHERE paused_at IS NOT NULL) AS paused
        FROM external_status_checks WHERE failing_since IS NOT NULL OR paused_at IS NOT NULL
    ) checks
    """)
async def deliveries(database: Executor) -> Deliveries: ...


@attrs.frozen
class Mirrors:
    """The enabled mirrors with a status, and the oldest of their last successes, or null if there was
    none."""

    status: str
    count: int
    oldest_success: datetime.datetime | None


@statement("""
    SELECT update_status AS status, count(*) AS count, min(last_successful_update_at) AS oldest_success
    FROM remote_mirrors WHERE enabled GROUP BY update_status
    """)
async def mirrors(database: Executor) -> list[Mirrors]: ...


@statement("SELECT count(*) FROM runners WHERE active AND contacted_at >= %(since)s::timestamptz")
async def alive_runners(database: Executor, since: datetime.datetime) -> int:
    """Return the number of active runners that have been heard of since a moment."""


@statement("SELECT count(*) FROM procrastinate_workers WHERE last_heartbeat >= %(since)s::timestamptz")
async def alive_workers(database: Executor, since: datetime.datetime) -> int:
    """Return the number of processes that do background work and have been heard of since a moment."""


@statement("SELECT pg_database_size(current_database())")
async def database_bytes(database: Executor) -> int: ...


def _sampled(table: str, condition: str) -> str:
    """Return a query that estimates the sum of a table's sizes from some 100 of its pages, or all if it is
    small."""
    return f"""
        SELECT coalesce(sum(size), 0) * greatest(max(part.whole), 1) AS bytes FROM {table}
            TABLESAMPLE SYSTEM (least(100, 10000.0 / greatest(pg_relation_size('{table}') / 8192, 1)))
        CROSS JOIN (SELECT pg_relation_size('{table}') / 8192 / 100.0 AS whole) part
        {condition}
    """


@statement(f"""
    SELECT sum(bytes)::bigint FROM (
        {_sampled("job_artifacts", "")} UNION ALL {_sampled("lfs_objects", "")}
        UNION ALL {_sampled("job_logs", "WHERE object_key IS NOT NULL")}
    ) parts
""")
async def store_bytes(database: Executor) -> int:
    """Return the estimated bytes of stored objects."""


ADD = """
    INSERT INTO operations_samples AS known (name, at, value)
    SELECT added.name, date_trunc('minute', %(now)s::timestamptz), added.value
    FROM unnest(%(names)s::text[], %(values)s::double precision[]) AS added (name, value)
    ON CONFLICT (name, at) DO UPDATE SET value = CASE WHEN %(sum)s THEN known.value ELSE 0 END + excluded.value
"""


async def add_samples(transaction: Transaction, values: Mapping[str, float], *, sums: bool) -> None:
    """Store values for the present minute. Existing values are increased if processes count parts of one
    whole (`sums`), and replaced otherwise."""
    await transaction.run(ADD, names=list(values), values=list(values.values()), sum=sums)


@attrs.frozen
class Sample:
    """A figure of one minute, identified by its beginning."""

    name: str
    at: datetime.datetime
    value: float


@statement("""
    SELECT name, at, value FROM operations_samples
    WHERE name = ANY (%(names)s::text[]) AND at >= %(since)s::timestamptz ORDER BY name, at
    """)
async def history(database: Executor, names: Sequence[str], since: datetime.datetime) -> list[Sample]:
    """Return the stored values of figures, the oldest first."""


@statement("DELETE FROM operations_samples WHERE at < %(before)s::timestamptz")
async def forget_samples(transaction: Transaction, before: datetime.datetime) -> None: ...
