"""What databases and repositories are filled with."""

import contextlib
import os
import random
import subprocess
from pathlib import Path

import psycopg2

from api_server.state.database import Executor
from forgelet.local.embedded_postgres import SUPERUSER, Cluster

#: Events of the author, entity and type that are looked for; as many among few as among many.
WANTED = 100
BATCH = 50_000

#: A year has a partition for each month.
MONTHS = """
    ALTER TABLE audit_events DETACH PARTITION audit_events_past;
    DROP TABLE audit_events_past;
    SELECT make_audit_partition('audit_events_past', NULL, date_trunc('month', now()) - interval '13 months');
    SELECT make_audit_partition('audit_events_' || to_char(month, 'YYYY_MM'), month, month + interval '1 month')
    FROM generate_series(date_trunc('month', now()) - interval '13 months',
        date_trunc('month', now()) - interval '1 month', interval '1 month') month;
"""

#: Spread evenly, with the wanted ones among them, and of the others each tenth of the project and of the group.
FILL_EVENTS = """
    INSERT INTO audit_events (created_at, author_id, author_name, entity_type, entity_id, entity_path, event_type,
        target_type, target_id, target_details, details)
    SELECT now() - interval '1 year' + interval '1 year' * n / %(total)s,
        CASE WHEN wanted THEN 7 ELSE 1000 + n %% 5000 END, 'alice',
        CASE WHEN NOT wanted AND n %% 10 = 1 THEN 'Group' ELSE 'Project' END,
        CASE WHEN wanted THEN 7000000 WHEN n %% 10 = 1 THEN %(group_id)s WHEN n %% 10 = 2 THEN %(project_id)s
            ELSE 8000000 + n %% 5000 END, 'group/app',
        CASE WHEN wanted THEN 'project_archived' ELSE 'project_name_updated' END, 'Project', n %% 5000, 'app',
        '{"custom_message": "Changed name from app to tool", "change": "name", "from": "app", "to": "tool"}'
    FROM generate_series(%(first)s, %(last)s) n CROSS JOIN LATERAL (SELECT n %% (%(total)s / %(wanted)s) = 0) w (wanted)
"""


def fill_events(
    cluster: Cluster, total: int, *, project_id: int = 1, group_id: int = 1, chained: bool = False
) -> None:
    """So many events. They are chained at a tenth of the speed, and only what verifies the chain looks at it."""
    values = {"total": total, "wanted": WANTED, "project_id": project_id, "group_id": group_id}
    url = cluster.url(role=SUPERUSER)
    with contextlib.closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(MONTHS)
        if not chained:
            cursor.execute("SET session_replication_role = replica")  # without triggers
        for first in range(1, total + 1, BATCH):
            last = min(first + BATCH - 1, total)
            cursor.execute(FILL_EVENTS, {"first": first, "last": last, **values})
            connection.commit()
        connection.autocommit = True
        cursor.execute("VACUUM (ANALYZE) audit_events, audit_chain")


JOBS_PER_PIPELINE = 100

#: Pipelines of 100 jobs each; of 1,000 jobs one has failed, one is running and one is canceled, the others succeeded.
FILL_JOBS = """
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


async def fill_jobs(
    database: Executor, *, project_id: int, user_id: int, runner_id: int | None, jobs: int = 200_000
) -> None:
    """Gives the project that many jobs."""
    await database.run(
        FILL_JOBS,
        project_id=project_id,
        user_id=user_id,
        runner_id=runner_id,
        jobs=jobs,
        per_pipeline=JOBS_PER_PIPELINE,
    )


_BLOB = 100_000


def git(repository: Path, *arguments: str, given: bytes | None = None) -> str:
    """What git says; raises `RuntimeError` where it fails."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(repository.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }
    command = ["git", f"--git-dir={repository}", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, env=environment, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"git {arguments[0]} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace")


def grow(repository: Path, branch: str, size: int) -> None:
    """A commit on top of `branch`, or its first one, with files of so many bytes in all that cannot be compressed."""
    if not repository.exists():
        git(repository, "init", "--quiet", "--bare", "--initial-branch=main")
    exists = bool(git(repository, "for-each-ref", f"refs/heads/{branch}"))
    stream = [
        f"commit refs/heads/{branch}\ncommitter A <a@example.org> 1700000000 +0000\ndata 6\nfiles\n\n".encode(),
        f"from refs/heads/{branch}^0\n".encode() if exists else b"",
    ]
    for start in range(0, size, _BLOB):
        content = random.randbytes(min(_BLOB, size - start))
        name = content[:8].hex()
        stream.append(f"M 100644 inline {name[:2]}/{name}\ndata {len(content)}\n".encode() + content + b"\n")
    git(repository, "fast-import", "--quiet", given=b"".join(stream))
