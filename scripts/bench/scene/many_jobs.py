"""A database with many jobs, for what depends on numbers: query plans and speed."""

from api_server.state.database import Executor

JOBS_PER_PIPELINE = 100

#: Pipelines of 100 jobs each; of 1,000 jobs one has failed, one is running and one is canceled, the others succeeded.
FILL = """
    WITH owner AS (
        INSERT INTO pipelines (project_id, iid, user_id, status, source, ref, sha, before_sha, commit,
            created_at, updated_at)
        SELECT %(project_id)s, number, %(user_id)s, 'success', 'push', 'main', lpad(to_hex(number), 40, '0'),
            repeat('0', 40), json_build_object('id', lpad(to_hex(number), 40, '0'), 'short_id',
                lpad(to_hex(number), 8, '0'), 'created_at', '2024-01-01T00:00:00.000+00:00', 'title', 'A commit',
                'message', 'A commit with a message', 'author_name', 'Alice', 'author_email', 'alice@example.org'),
            %(now)s, %(now)s
        FROM generate_series(1, %(jobs)s / %(per_pipeline)s) AS number
        RETURNING id, iid
    )
    INSERT INTO jobs (project_id, pipeline_id, kind, status, name, stage, stage_index, when_run, allow_failure, plan,
        user_id, runner_id, created_at, queued_at, started_at, finished_at)
    SELECT %(project_id)s, owner.id, 'build',
        CASE (owner.iid * %(per_pipeline)s + number) %% 1000
            WHEN 0 THEN 'failed' WHEN 1 THEN 'running' WHEN 2 THEN 'canceled' ELSE 'success' END,
        'job ' || number, 'test', 1, 'on_success', false, '{"name": "job", "stage": "test"}', %(user_id)s,
        %(runner_id)s, %(now)s, %(now)s, %(now)s, %(now)s
    FROM owner, generate_series(1, %(per_pipeline)s) AS number
    ORDER BY owner.id, number
"""


async def fill(
    database: Executor, *, project_id: int, user_id: int, runner_id: int | None, jobs: int = 200_000
) -> None:
    """Gives the project that many jobs."""
    await database.run(
        FILL,
        project_id=project_id,
        user_id=user_id,
        runner_id=runner_id,
        jobs=jobs,
        per_pipeline=JOBS_PER_PIPELINE,
    )
