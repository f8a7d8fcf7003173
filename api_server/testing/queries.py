# mypy: disable-error-code="empty-body"
"""Statements that look at all tables at once, copy them and bring the copies back; and those of the queue's clock.

They are made from what the database says of itself, so that no table can be forgotten. procrastinate's statements ask
`now()`; on the queue's connections (`search_path`) that is the function made here.
"""

from collections.abc import Iterable, Mapping

import attrs

from api_server.state.database import Executor
from api_server.state.declarations import statement

#: Where the copies are, and what PostgreSQL's clock is replaced by.
SCHEMA = "forgelet_testing"

MAY_REPLICATE = "SELECT has_parameter_privilege('session_replication_role', 'SET')"

#: For the length of the connection: whether no other server has it.
ALONE = "SELECT pg_try_advisory_lock(hashtext('forgelet_testing'))"

MAKE_SCHEMA = f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"

#: Copies that an earlier process has left.
LEFT_COPIES = f"""
    SELECT relname::text FROM pg_class WHERE relnamespace = '{SCHEMA}'::regnamespace AND relname ~ '^copy_'
"""

#: Partitions belong to their parent. Who works at the queue just now is no state, but said by each process of itself.
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

#: For the whole session: whenever it changes, PostgreSQL forgets the plan of the statement that looks at everything.
WITHOUT_TRIGGERS = "SET session_replication_role = replica"
THIS_TRANSACTION = "SELECT pg_current_xact_id()::xid::text::bigint"


@attrs.frozen
class Table:
    """A table, and the columns that are written, as they stand in statements."""

    name: str
    columns: str


def prepare_look(name: str, tables: Iterable[Table], sequences: Iterable[str]) -> str:
    """Prepares a statement with that name, of one row: for each table how many rows it has, the newest transaction
    that has written one of them, and its bytes; for each sequence the last value that it has given."""
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
    """Keeps a table's rows under the name of a copy."""
    return f"CREATE UNLOGGED TABLE {SCHEMA}.{name} AS SELECT {table.columns} FROM {table.name}"


def drop(name: str) -> str:
    return f"DROP TABLE {SCHEMA}.{name}"


def bring_back(table: Table, name: str | None) -> str:
    """Replaces a table's rows by those of a copy, or by none."""
    emptied = f"DELETE FROM {table.name}"
    if name is None:
        return emptied
    return (
        f"{emptied}; INSERT INTO {table.name} ({table.columns}) OVERRIDING SYSTEM VALUE"
        f" SELECT {table.columns} FROM {SCHEMA}.{name}"
    )


def set_sequences(values: Mapping[str, tuple[int, bool]]) -> str:
    """Each gives next what follows the value, or the value itself where that has not been given yet."""
    return "SELECT " + ", ".join(
        f"setval('{sequence}', {value}, {str(given).lower()})" for sequence, (value, given) in values.items()
    )


def vacuum(table: str) -> str:
    """Runs by itself, outside of a transaction."""
    return f"VACUUM {table}"


MAKE_CLOCK = f"""
    CREATE TABLE IF NOT EXISTS {SCHEMA}.clock (ahead interval NOT NULL);
    DELETE FROM {SCHEMA}.clock;
    INSERT INTO {SCHEMA}.clock VALUES ('0');
    CREATE OR REPLACE FUNCTION {SCHEMA}.now() RETURNS timestamptz LANGUAGE sql STABLE AS
        'SELECT pg_catalog.now() + ahead FROM {SCHEMA}.clock'
"""

#: Workers have been heard of as long ago as before.
MOVE_CLOCK = f"""
    UPDATE procrastinate_workers SET last_heartbeat = last_heartbeat + %(ahead)s - ahead FROM {SCHEMA}.clock;
    UPDATE {SCHEMA}.clock SET ahead = %(ahead)s
"""


@attrs.frozen
class Due:
    """A kind of work that is due or under way."""

    name: str


@statement("""
    SELECT DISTINCT task_name::text AS name FROM procrastinate_jobs
    WHERE status = 'doing' OR status = 'todo' AND (scheduled_at IS NULL OR scheduled_at <= %(now)s)
    ORDER BY 1
    """)
async def due(database: Executor) -> list[str]:
    """The names of tasks that are due or under way."""
