"""Lists of audit events are read from the right end of one index, whatever they are narrowed by."""

import contextlib
import datetime
import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import pytest

from api_server.audit import queries
from api_server.state.listing import Page
from tests.support.plans import nodes

ROWS = 30_000
NOW = datetime.datetime.now(datetime.UTC)
IN_DAYS = {days: NOW + datetime.timedelta(days=days) for days in (10, 20)}

FILL = """
    INSERT INTO audit_events (created_at, author_id, author_name, entity_type, entity_id, entity_path, event_type,
        target_type, target_id, target_details, details)
    SELECT now() + interval '60 days' * n / %(rows)s, n %% 300, 'alice', 'Project', n %% 300, 'group/app',
        CASE n %% 100 WHEN 0 THEN 'project_archived' ELSE 'project_name_updated' END, 'Project', n %% 300, 'app',
        '{"custom_message": "Changed name from app to tool"}'
    FROM generate_series(1, %(rows)s) n
"""


@pytest.fixture(scope="module")
def cursor(new_database: Callable[[], str]) -> Iterator[Any]:
    """A database with many events over some months."""
    with contextlib.closing(
        psycopg2.connect(new_database(), options="-c forgelet.base_url=http://forge.example.org")
    ) as connection:
        connection.autocommit = True
        with connection.cursor() as opened:
            opened.execute("ALTER TABLE audit_events DISABLE TRIGGER USER")
            opened.execute(FILL, {"rows": ROWS})
            opened.execute("ALTER TABLE audit_events ENABLE TRIGGER USER")
            opened.execute("VACUUM (ANALYZE) audit_events")
            yield opened


def _read(cursor: Any, filters: dict[str, Any], **page: Any) -> tuple[int, set[str], int]:
    """Rows that were read from the table's partitions for a page of 20, the kinds of nodes that read them, and the
    8 KiB blocks of tables and indexes that they read."""
    read, kinds, blocks = 0, set(), 0
    for node in _executed(cursor, filters, **page):
        if str(node.get("Relation Name", "")).startswith("audit_events") and node["Actual Loops"]:
            read += (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            blocks += node["Shared Hit Blocks"] + node["Shared Read Blocks"]
            if node["Actual Rows"]:
                kinds.add(node["Node Type"])
    return int(read), kinds, blocks


def _executed(cursor: Any, filters: dict[str, Any], **page: Any) -> Iterator[dict[str, Any]]:
    """The nodes of the plan for a page of 20, with what they have read."""
    wanted = Page(**({"counted": False} | page))
    statement = queries.listing(frozenset(filters)).statement(wanted)
    cursor.execute("DEALLOCATE ALL")
    cursor.execute(statement.prepare)
    values = {
        "page_size": wanted.size,
        "page_offset": wanted.offset,
        "page_after": wanted.after,
    }
    before, _, execute = statement.execute.partition("EXECUTE")
    assert "force_generic_plan" in before, "planned anew, a page costs three times as much"
    cursor.execute(f"{before}EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE{execute}", values | filters)
    found = cursor.fetchone()[0]
    yield from nodes((json.loads(found) if isinstance(found, str) else found)[0]["Plan"])


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"entity_type": "Project", "entity_id": 7},
        {"author_id": 7},
        {"event_type": "project_archived"},
        {"target_type": "Project", "target_id": 7},
        {"created_before": IN_DAYS[20]},
        {"author_id": 7, "created_before": IN_DAYS[20]},
        {"entity_type": "Project", "entity_id": 7, "created_after": IN_DAYS[10]},
    ],
    ids=lambda filters: ", ".join(filters) or "all",
)
def test_a_page_reads_its_own_rows_only(cursor: Any, filters: dict[str, Any]) -> None:
    read, kinds, blocks = _read(cursor, filters)
    assert blocks <= 35, "indexes are entered where the page begins"
    assert 21 <= read <= 21 + 2, "one more than the page tells that another follows"
    assert kinds <= {"Index Scan", "Index Only Scan"}


def test_a_page_far_behind_costs_no_more(cursor: Any) -> None:
    cursor.execute("SELECT id FROM audit_events ORDER BY created_at LIMIT 1 OFFSET 1000")
    read, kinds, blocks = _read(cursor, {}, after=cursor.fetchone()[0])
    assert read <= 25
    assert blocks <= 35
    assert kinds <= {"Index Scan", "Index Only Scan"}


@pytest.mark.parametrize(
    "filters",
    [{}, {"entity_type": "Project", "entity_id": 7}, {"author_id": 7}, {"event_type": "project_archived"}],
    ids=lambda filters: ", ".join(filters) or "all",
)
def test_where_a_page_begins_is_looked_up_by_its_id_alone(cursor: Any, filters: dict[str, Any]) -> None:
    """However many events the list has."""
    nodes = _executed(cursor, filters, after=1)
    found = [node for node in nodes if node.get("Index Cond", "").startswith("(id = ")]
    assert len(found) >= 2, "one of each month"
    assert all(node["Index Name"].endswith("_pkey") and "Filter" not in node for node in found)


def test_counting_stops(cursor: Any) -> None:
    read, _, _ = _read(cursor, {}, counted=True)
    assert read <= 10_001 + 21
