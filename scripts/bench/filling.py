"""Fill databases with very many jobs and audit events, and repositories with files."""

import contextlib
import datetime
import random
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from api_server.state.database import Executor
from api_server.state.migrate import migrate
from api_server.state.secrets import KEY_FILE, STATIC_OBJECT_TOKEN, digest, open_vault
from forgelet.local import embedded_postgres
from forgelet.local.embedded_postgres import SUPERUSER, Cluster, autocommitting
from scripts.harness.contents import commit_head, data, git

#: Number of events of the author, entity and type that the measured lists show; it is the same for each total.
WANTED = 100
BATCH = 50_000

#: Partitions for each month of a year.
MONTHS = """
    ALTER TABLE audit_events DETACH PARTITION audit_events_past;
    DROP TABLE audit_events_past;
    SELECT make_audit_partition('audit_events_past', NULL, date_trunc('month', now()) - interval '13 months');
    SELECT make_audit_partition('audit_events_' || to_char(month, 'YYYY_MM'), month, month + interval '1 month')
    FROM generate_series(date_trunc('month', now()) - interval '13 months',
        date_trunc('month', now()) - interval '1 month', interval '1 month') month;
"""

#: Events spread evenly over a year, with the wanted ones among them; of the others, a tenth is the project's and a
#: tenth the group's.
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
    """Insert this many events. Chained events are inserted at a tenth of the speed, and only the verification of the
    chain needs them."""
    values = {"total": total, "wanted": WANTED, "project_id": project_id, "group_id": group_id}
    with superuser(cluster) as cursor:
        cursor.execute(MONTHS)
        if not chained:
            cursor.execute("SET session_replication_role = replica")  # without triggers
        for first in range(1, total + 1, BATCH):
            last = min(first + BATCH - 1, total)
            cursor.execute(FILL_EVENTS, {"first": first, "last": last, **values})
        cursor.execute("VACUUM (ANALYZE) audit_events, audit_chain")


JOBS_PER_PIPELINE = 100

#: Pipelines of 100 jobs each. Of 1,000 jobs, one has failed, one is running, one is canceled, and the others
#: succeeded.
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
    """Insert this many jobs of the project."""
    await database.run(
        FILL_JOBS,
        project_id=project_id,
        user_id=user_id,
        runner_id=runner_id,
        jobs=jobs,
        per_pipeline=JOBS_PER_PIPELINE,
    )


_BLOB = 100_000


def grow(repository: Path, branch: str, size: int) -> None:
    """Create a commit on `branch`, its first one if necessary, with files of `size` bytes altogether that cannot be
    compressed."""
    if not repository.exists():
        git(repository, "init", "--quiet", "--bare", "--initial-branch=main")
    exists = git(repository, "for-each-ref", f"refs/heads/{branch}")
    stream = [commit_head(branch, "files", on=f"refs/heads/{branch}^0" if exists else "")]
    for start in range(0, size, _BLOB):
        content = random.randbytes(min(_BLOB, size - start))
        name = content[:8].hex()
        stream.append(f"M 100644 inline {name[:2]}/{name}\n".encode() + data(content))
    git(repository, "fast-import", "--quiet", stdin=stream)


PER_PIPELINE = 10
RUNNERS = 100
#: Number of running pipelines, and number of pipelines of the small project.
YOUNG = FEW = 200
PIPELINE_BATCH = 20_000  # pipelines

#: Usual settings for a machine of 8 GB; the other settings are PostgreSQL's defaults, and writes are flushed.
SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "maintenance_work_mem": "256MB",
    "effective_cache_size": "4GB",
}
FILLED = ("pipelines", "jobs", "job_logs", "job_artifacts", "audit_events", "audit_chain")
INDEXES = """
    SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index
    WHERE indrelid = %s::regclass AND NOT indisprimary ORDER BY 1
"""


@contextlib.contextmanager
def durable_cluster() -> Iterator[Cluster]:
    """Run a durable PostgreSQL in a temporary folder for the duration of the block."""
    with tempfile.TemporaryDirectory(
        prefix="forgelet-growth-", dir=embedded_postgres.temporary_root()
    ) as name:
        outside = Path(name)
        outside.chmod(0o711)
        cluster = Cluster(
            embedded_postgres.make_folder(outside / "cluster"), secrets.token_urlsafe(16), durable=True
        )
        cluster.start(outside / "server.log")
        try:
            with superuser(cluster) as cursor:
                for setting, value in SETTINGS.items():
                    cursor.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
            cluster.stop()
            cluster.start(outside / "server.log")
            yield cluster
        finally:
            cluster.stop()


def superuser(cluster: Cluster) -> contextlib.AbstractContextManager[Any]:
    """Return a cursor outside of transactions."""
    return autocommitting(cluster.url(role=SUPERUSER))


def row_of(cluster: Cluster, query: str, values: Mapping[str, object]) -> dict[str, Any]:
    """Return the only row of a query."""
    with superuser(cluster) as cursor:
        cursor.execute(query, values)
        names = [column.name for column in cursor.description]
        return dict(zip(names, cursor.fetchone(), strict=True))


def fill_everything(
    cluster: Cluster, folder: Path, rows: int, projects: int
) -> tuple[dict[str, int], dict[str, float]]:
    """Insert `rows` jobs and as many events; return the ids that paths use, and the seconds of each step. `folder`
    becomes the folder of a server's data, with the key that encrypts the owner's secrets."""
    migrate(cluster.url())
    owner = _owner(folder)
    parts, seconds = _parts(), {}
    with superuser(cluster) as cursor:
        cursor.execute("SET synchronous_commit = off")
        dropped = _without_indexes(cursor)
        start = time.perf_counter()
        ids = _fill_all_jobs(cursor, parts, owner, rows, projects)
        seconds["jobs and pipelines"] = time.perf_counter() - start
    start = time.perf_counter()
    fill_events(cluster, rows, project_id=ids["busy_id"], group_id=ids["group_id"])
    with superuser(cluster) as cursor:
        cursor.execute("SET synchronous_commit = off; SET session_replication_role = replica")
        cursor.execute(parts["chain"], ())
        cursor.execute(parts["owned"], ())
        seconds["events and their chain"] = time.perf_counter() - start
        start = time.perf_counter()
        for definition in dropped:
            cursor.execute(definition)
        seconds["their indexes"] = time.perf_counter() - start
        cursor.execute("VACUUM (ANALYZE)")
        cursor.execute("CHECKPOINT")
    return ids, seconds


def _without_indexes(cursor: Any) -> list[str]:
    """Drop the indexes of all tables that are filled; return their definitions."""
    dropped = []
    for table in FILLED:
        cursor.execute(INDEXES, [table])
        for name, definition in cursor.fetchall():
            cursor.execute(f"DROP INDEX {name}")
            dropped.append(definition.replace(" ON ONLY ", " ON "))
    return dropped


def _owner(folder: Path) -> dict[str, bytes]:
    """Create a key, and the encrypted secrets of the user who owns everything; return the secrets."""
    folder.mkdir(mode=0o700)
    (folder / KEY_FILE).write_text(secrets.token_hex(32))
    seed = secrets.token_bytes(20)
    token = open_vault(folder).derived_token(STATIC_OBJECT_TOKEN, seed)
    return {"seed": seed, "digest": digest(token)}


def _fill_all_jobs(
    cursor: Any, parts: dict[str, str], owner: dict[str, bytes], rows: int, projects: int
) -> dict[str, int]:
    cursor.execute("SET session_replication_role = replica")  # no triggers, no foreign keys
    cursor.execute(parts["places"], {**owner, "runners": RUNNERS})
    ids: dict[str, int] = dict(zip(("user_id", "group_id", "runner_id"), cursor.fetchone(), strict=True))
    cursor.execute(parts["projects"], {**ids, "projects": projects})
    first = cursor.fetchone()[0]
    ids |= {"busy_id": first, "doomed_id": first + 1, "small_id": first + 2, "tiny_id": first + projects - 1}
    pipelines = rows // PER_PIPELINE
    values = {
        **ids,
        "first_project": first,
        "projects": projects,
        "pipelines": pipelines,
        "runners": RUNNERS,
        "young": min(YOUNG, pipelines // 10),
        "few": min(FEW, pipelines // 10),
        "now": datetime.datetime.now(datetime.UTC),
    }
    for begin in range(1, pipelines + 1, PIPELINE_BATCH):
        batch = {**values, "first": begin, "last": min(begin + PIPELINE_BATCH - 1, pipelines)}
        for part in ("pipelines", "jobs", "left_behind"):
            cursor.execute(parts[part], batch)
    cursor.execute(parts["after"], ())
    return ids


def _parts() -> dict[str, str]:
    text = resources.files("scripts.bench").joinpath("growth_data.sql").read_text()
    return {
        title.strip(): body for title, body in (part.split("\n", 1) for part in text.split("-- name: ")[1:])
    }
