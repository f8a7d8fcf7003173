"""A database in the oldest schema with very many jobs and audit events, its indexes built when the rows are there."""

import contextlib
import datetime
import secrets
import tempfile
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import psycopg2

from api_server.state.migrate import known_migrations, make_older_schema
from api_server.state.secrets import KEY_FILE, STATIC_OBJECT_TOKEN, digest, open_vault
from forgelet.local import cluster_folders
from forgelet.local.embedded_postgres import SUPERUSER, Cluster
from scripts.bench.scene import many_rows

PER_PIPELINE = 10
RUNNERS = 100
#: Pipelines that run, and those of the small project.
YOUNG = FEW = 200
BATCH = 20_000  # pipelines

#: As one would set a machine of 8 GB; otherwise PostgreSQL's defaults, with its writes flushed.
SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "maintenance_work_mem": "256MB",
    "effective_cache_size": "4GB",
}
FILLED = ("pipelines", "jobs", "job_traces", "job_artifacts", "audit_events", "audit_chain")
INDEXES = """
    SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index
    WHERE indrelid = %s::regclass AND NOT indisprimary ORDER BY 1
"""


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A durable one, which leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="forgelet-growth-", dir=cluster_folders.temporary_root()) as name:
        outside = Path(name)
        outside.chmod(0o711)
        made = Cluster(cluster_folders.made(outside / "cluster"), secrets.token_urlsafe(16), durable=True)
        made.start(outside / "server.log")
        try:
            with superuser(made) as cursor:
                for setting, value in SETTINGS.items():
                    cursor.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
            made.stop()
            made.start(outside / "server.log")
            yield made
        finally:
            made.stop()


@contextlib.contextmanager
def superuser(cluster: Cluster) -> Iterator[Any]:
    """A cursor outside of transactions."""
    with contextlib.closing(psycopg2.connect(cluster.url(role=SUPERUSER))) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            yield cursor


def oldest_schema() -> set[str]:
    """The migrations that make jobs, pipelines and the audit trail; of those that came to change them, none."""
    return {name for name in known_migrations() if name < "0025" or "0030" <= name <= "0050_audit_trail"}


def fill(cluster: Cluster, data: Path, rows: int, projects: int) -> tuple[dict[str, int], dict[str, float]]:
    """So many jobs and so many events: the ids that paths name, and the seconds that each step took. `data` becomes
    the folder of a server's data, with the key that the owner's secrets are made with."""
    make_older_schema(cluster.url(), oldest_schema())
    owner = _owner(data)
    parts, seconds = _parts(), {}
    with superuser(cluster) as cursor:
        cursor.execute("SET synchronous_commit = off")
        dropped = _without_indexes(cursor)
        begun = time.perf_counter()
        ids = _fill_jobs(cursor, parts, owner, rows, projects)
        seconds["jobs and pipelines"] = time.perf_counter() - begun
    begun = time.perf_counter()
    many_rows.fill_events(cluster, rows, project_id=ids["busy_id"], group_id=ids["group_id"])
    with superuser(cluster) as cursor:
        cursor.execute("SET synchronous_commit = off; SET session_replication_role = replica")
        cursor.execute(parts["chain"], ())
        cursor.execute(parts["owned"], ())
        seconds["events and their chain"] = time.perf_counter() - begun
        begun = time.perf_counter()
        for definition in dropped:
            cursor.execute(definition)
        seconds["their indexes"] = time.perf_counter() - begun
        cursor.execute("VACUUM (ANALYZE)")
        cursor.execute("CHECKPOINT")
    return ids, seconds


def _without_indexes(cursor: Any) -> list[str]:
    """The definitions of all that are dropped."""
    dropped = []
    for table in FILLED:
        cursor.execute(INDEXES, [table])
        for name, definition in cursor.fetchall():
            cursor.execute(f"DROP INDEX {name}")
            dropped.append(definition.replace(" ON ONLY ", " ON "))
    return dropped


def _owner(data: Path) -> dict[str, bytes]:
    """The secrets of whom all of it belongs to, under a new key."""
    data.mkdir(mode=0o700)
    (data / KEY_FILE).write_text(secrets.token_hex(32))
    seed = secrets.token_bytes(20)
    token = open_vault(data).derived_token(STATIC_OBJECT_TOKEN, seed)
    return {"seed": seed, "digest": digest(token)}


def _fill_jobs(
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
    for begin in range(1, pipelines + 1, BATCH):
        piece = {**values, "first": begin, "last": min(begin + BATCH - 1, pipelines)}
        for part in ("pipelines", "jobs", "left_behind"):
            cursor.execute(parts[part], piece)
    cursor.execute(parts["after"], ())
    return ids


def _parts() -> dict[str, str]:
    text = resources.files("scripts.bench.growing").joinpath("filling.sql").read_text()
    return {
        title.strip(): body for title, body in (part.split("\n", 1) for part in text.split("-- name: ")[1:])
    }
