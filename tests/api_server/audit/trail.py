"""Recording, reading and breaking an audit trail directly, and the commands of operators."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
from click.testing import CliRunner

from api_server.state import audit_trail
from api_server.state.audit_trail import SYSTEM, Entity
from api_server.state.database import Database
from forgelet.command_line import forgelet
from tests.support.forge import Forge

GROUP = Entity("Group", 1, "some/group")


async def new_group(forge: Forge, **values: Any) -> tuple[dict[str, Any], Entity]:
    """A group, and what its events belong to."""
    made = await forge.group(**values)
    return made, Entity("Group", made["id"], made["full_path"])


PARTITIONS = """
    SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'audit_events'::regclass ORDER BY relname
"""


async def partitions(database: Database) -> list[str]:
    return [row.relname for row in await database.rows(PARTITIONS)]


#: Makes October 2021 a month, as if the service had run then.
MAKE_OLD_MONTH = """
    ALTER TABLE audit_events DETACH PARTITION audit_events_past;
    DROP TABLE audit_events_past;
    SELECT make_audit_partition('audit_events_past', NULL, '2021-10-01');
    SELECT make_audit_partition('audit_events_2021_10', '2021-10-01', '2021-11-01')
"""


async def record_events(database: Database, *names: str, fails: bool = False) -> None:
    """One transaction with a group_created event for each of `names`."""
    with contextlib.suppress(ZeroDivisionError):
        async with database.transaction() as transaction:
            for name in names:
                await audit_trail.record(transaction, "group_created", SYSTEM, GROUP.target(1, name))
            if fails:
                raise ZeroDivisionError


@contextlib.contextmanager
def without_triggers(url: str) -> Iterator[Any]:
    """The owner of the tables, for whom nothing is refused and nothing is chained meanwhile."""
    with contextlib.closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for do in ("DISABLE", "ENABLE"):
                cursor.execute(
                    f"ALTER TABLE audit_events {do} TRIGGER USER; ALTER TABLE audit_chain {do} TRIGGER USER"
                )
                if do == "DISABLE":
                    yield cursor


def run_command(url: str, *arguments: str, data_dir: Path | None = None, **options: Any) -> Any:
    """An operator's command; without `data_dir` no head was ever kept."""
    with tempfile.TemporaryDirectory() as empty:
        environment = {"FORGELET_API_DATABASE_URL": url, "FORGELET_API_DATA_DIR": str(data_dir or empty)}
        return CliRunner().invoke(forgelet, ["audit", *arguments], env=environment, **options)
