"""A year of audit events."""

import contextlib

import psycopg2

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
FILL = """
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


def fill(
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
            cursor.execute(FILL, {"first": first, "last": last, **values})
            connection.commit()
        connection.autocommit = True
        cursor.execute("VACUUM (ANALYZE) audit_events, audit_chain")
