"""From the oldest schema to the newest over the tables that were filled: what each migration takes."""

import time

from api_server.state.migrate import known_migrations, make_older_schema, migrate
from forgelet.local.embedded_postgres import Cluster
from scripts.bench.growing.filling import oldest_schema, superuser

#: Of a relation whose file is another one after a migration, it was written anew.
FILES = """
    SELECT relname::text, relfilenode FROM pg_class
    WHERE relkind = 'r' AND relname IN ('jobs', 'pipelines', 'job_logs', 'job_artifacts', 'audit_chain')
"""


def migrated(cluster: Cluster) -> tuple[dict[str, float], list[str]]:
    """Seconds of each migration, and the tables that one of them has written anew."""
    seconds, done, rewritten = {}, oldest_schema(), []
    with superuser(cluster) as cursor:
        cursor.execute(FILES)
        before = dict(cursor.fetchall())
        for name in sorted(known_migrations() - done):
            done.add(name)
            begun = time.perf_counter()
            make_older_schema(cluster.url(), done)
            seconds[name] = time.perf_counter() - begun
            cursor.execute(FILES)
            after = dict(cursor.fetchall())
            rewritten += [
                f"{table} by {name}" for table in after if before.get(table, after[table]) != after[table]
            ]
            before = after
    migrate(cluster.url())  # the functions
    return seconds, rewritten
