# mypy: disable-error-code="empty-body"
"""Statements that examine all tables at once, copy them and restore the copies; and those of the queue's
clock.

They are generated from the database's catalog, so that no table can be forgotten. procrastinate's statements
call `now()`; on the queue's connections (`search_path`) that is the function created here.
"""

from collections.abc import Iterable, Mapping

import attrs

from api_server.state.database import Executor
from api_server.state.declarations import statement

#: The schema of the copies and of the replacement for PostgreSQL's clock.
SCHEMA = "forgelet_testing"

MAY_REPLICATE = "SELECT has_parameter_privilege('session_replication_role', 'SET')"

#: Held by the connection: returns whether no other server holds it.
ALONE = "SELECT pg_try_advisory_lock(hashtext('forgelet_testing'))"

MAKE_SCHEMA = f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"

#: Copies left by an earlier process.
STALE_COPIES = f"""
    SELECT relname::text FROM pg_class WHERE relnamespace = '{SCHEMA}'::regnamespace AND relname ~ '^copy_'
"""

#: Partitions belong to their parent. The table of queue workers is not state: each process writes its own
#: row.
TABLES = """
    SELECT pg_class.oid::regclass::text,
        string_agg(quote_ident(attname), ', ' ORDER BY attnum) FILTER (WHERE attgenerated = '')
    FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
        AND relname <> 'procrastinate_workers'
    GROUP BY pg_class.oid ORDER BY 1
"""

SEQUENCES = """
    SELECT seqrelid::regclass::text, seqstart FROM pg_sequence
    JOIN pg_class ON pg_class.oid = seqrelid AND relnamespace = 'public'::regnamespace
    WHERE relname <> 'procrastinate_workers_id_seq' ORDER BY 1
"""

#: Set for the whole session: each change of it makes PostgreSQL discard the plan of the statement that
#: examines all tables.
WITHOUT_TRIGGERS = "SET session_replication_role = replica"
THIS_TRANSACTION = "SELECT pg_current_xact_id()::xid::text::bigint"


@attrs.frozen
class Table:
    """A table, and its writable columns in the notation of statements."""

    name: str
    columns: str


def prepare_look(name: str, tables: Iterable[Table], sequences: Iterable[str]) -> str:
    """Return SQL that prepares a statement of that name with one row: for each table the number of rows, the
    newest transaction that has written one of them, and its bytes; for each sequence its last value."""
    tables = list(tables)
    counts = ", ".join(f"(SELECT count(*) FROM {table.name})" for table in tables)
    newest = ", ".join(f"(SELECT max(xmin::text::bigint) FROM {table.name})" for table in tables)
    sizes = ", ".join(f"pg_relation_size('{table.name}')" for table in tables)
    values = ", ".join(f"pg_sequence_last_value('{sequence}')" for sequence in sequences)
    return f"""
        SET plan_cache_mode = force_generic_plan; SET max_parallel_workers_per_gather = 0; SET jit = off;
        PREPARE {name} AS SELECT ARRAY[{counts}]::bigint[] AS counts, ARRAY[{newest}]::bigint[] AS newest,
            ARRAY[{sizes}]::bigint[] AS sizes, ARRAY[{values}]::bigint[] AS values
    """


def copy(table: Table, name: str) -> str:
    """Return SQL that stores a table's rows in a copy of that name."""
    return f"CREATE UNLOGGED TABLE {SCHEMA}.{name} AS SELECT {table.columns} FROM {table.name}"


def drop(name: str) -> str:
    return f"DROP TABLE {SCHEMA}.{name}"


def bring_back(table: Table, name: str | None) -> str:
    """Return SQL that replaces a table's rows by those of a copy, or by none."""
    emptied = f"DELETE FROM {table.name}"
    if name is None:
        return emptied
    return (
        f"{emptied}; INSERT INTO {table.name} ({table.columns}) OVERRIDING SYSTEM VALUE"
        f" SELECT {table.columns} FROM {SCHEMA}.{name}"
    )


def set_sequences(values: Mapping[str, tuple[int, bool]]) -> str:
    """Return SQL that sets sequences: each next yields the number after its value, or the value itself if
    that has not been used yet."""
    return "SELECT " + ", ".join(
        f"setval('{sequence}', {value}, {str(used).lower()})" for sequence, (value, used) in values.items()
    )


def vacuum(table: str) -> str:
    """Return SQL that has to run outside of a transaction."""
    return f"VACUUM {table}"


MAKE_CLOCK = f"""
    CREATE TABLE IF NOT EXISTS {SCHEMA}.clock (ahead interval NOT NULL);
    DELETE FROM {SCHEMA}.clock;
    INSERT INTO {SCHEMA}.clock VALUES ('0');
    CREATE OR REPLACE FUNCTION {SCHEMA}.now() RETURNS timestamptz LANGUAGE sql STABLE AS
        'SELECT pg_catalog.now() + ahead FROM {SCHEMA}.clock'
"""

#: The age of workers' last heartbeats stays unchanged.
MOVE_CLOCK = f"""
    UPDATE procrastinate_workers SET last_heartbeat = last_heartbeat + %(ahead)s - ahead FROM {SCHEMA}.clock;
    UPDATE {SCHEMA}.clock SET ahead = %(ahead)s
"""


@attrs.frozen
class Due:
    """A kind of work that is due or running."""

    name: str


@statement("""
    SELECT DISTINCT task_name::text AS name FROM procrastinate_jobs
    WHERE status = 'doing' OR status = 'todo' AND (scheduled_at IS NULL OR scheduled_at <= %(now)s)
    ORDER BY 1
    """)
async def due(database: Executor) -> list[str]:
    """Return the names of tasks that are due or running."""
