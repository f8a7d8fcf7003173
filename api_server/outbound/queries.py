# mypy: disable-error-code="empty-body"
"""Statements that count emails by the hour, for all processes together, and those about storage edges."""

import datetime
from collections.abc import Sequence

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement


@attrs.frozen
class Hour:
    """The current hour of an address or user, and the number of mails in it so far."""

    began_at: datetime.datetime
    emails: int


@statement("""
    INSERT INTO letter_counts (counted, began_at, letters) VALUES (%(counted)s, %(now)s, %(emails)s)
    ON CONFLICT (counted) DO UPDATE SET
        began_at = CASE WHEN letter_counts.began_at > %(now)s::timestamptz - %(window)s::interval
            THEN letter_counts.began_at ELSE excluded.began_at END,
        letters = CASE WHEN letter_counts.began_at > %(now)s::timestamptz - %(window)s::interval
            THEN letter_counts.letters + excluded.letters ELSE excluded.letters END
    RETURNING began_at, letters AS emails
    """)
async def count_emails(
    transaction: Transaction, counted: str, emails: int, window: datetime.timedelta
) -> Hour:
    """Count emails and return the hour. Other transactions that count for the same key wait for the end of
    this one."""


@statement("""
    DELETE FROM letter_counts WHERE began_at <= %(now)s::timestamptz - %(window)s::interval
""")
async def forget_emails(transaction: Transaction, window: datetime.timedelta) -> None:
    """Delete the hours that are over."""


@attrs.frozen
class Edge:
    """An edge that some server lists, by its base URL, with the time since which it could not be notified."""

    id: int
    url: str
    failing_since: datetime.datetime | None


ADD = """
    INSERT INTO edges (url, listed_at)
    SELECT url, %(now)s FROM unnest(%(urls)s::text[]) WITH ORDINALITY AS listed (url, place)
    WHERE NOT EXISTS (SELECT FROM edges WHERE edges.url = listed.url)
    ORDER BY place
    ON CONFLICT (url) DO NOTHING
"""
#: Rows that another server is renewing at this moment are skipped.
RENEW = """
    UPDATE edges SET listed_at = %(now)s FROM (
        SELECT id FROM edges WHERE url = ANY (%(urls)s) AND listed_at < %(before)s FOR UPDATE SKIP LOCKED
    ) AS old
    WHERE edges.id = old.id
"""


async def list_them(transaction: Transaction, urls: Sequence[str], before: datetime.datetime) -> None:
    """Record that a server lists these edges, unless that has been recorded since `before`. A new edge is
    purged of everything, because its contents are unknown."""
    await transaction.run(ADD, urls=list(urls))
    await transaction.run(RENEW, urls=list(urls), before=before)


FORGET = "DELETE FROM edges WHERE listed_at < %(before)s"
FORGET_DEBTS = (
    "DELETE FROM edge_purges WHERE NOT EXISTS (SELECT FROM edges WHERE edges.id = edge_purges.edge_id)"
)


async def forget(transaction: Transaction, before: datetime.datetime) -> None:
    """Delete the edges that no server has listed since `before`, and their pending notifications."""
    if await transaction.run(FORGET, before=before):
        await transaction.run(FORGET_DEBTS)


@statement("SELECT id, url, failing_since FROM edges ORDER BY id")
async def all_edges(database: Executor) -> list[Edge]:
    """Return all edges, whichever servers list them."""


@attrs.frozen
class Notice:
    """A row that records that an edge has not been notified of a change."""

    id: int
    edge_id: int
    url: str


@statement("""
    WITH owed AS (
        INSERT INTO edge_purges (edge_id, keys, created_at) SELECT edges.id, %(keys)s, %(now)s FROM edges
        RETURNING id, edge_id
    )
    SELECT owed.id, owed.edge_id, edges.url FROM owed JOIN edges ON edges.id = owed.edge_id
    """)
async def add_notices(transaction: Transaction, keys: Sequence[str]) -> list[Notice]:
    """Record, for every edge, that it has to be notified of a change, and return the rows."""


@statement("DELETE FROM edge_purges WHERE id = ANY (%(ids)s::bigint[])")
async def settle(transaction: Transaction, ids: Sequence[int]) -> None:
    """Delete rows: the edge has been notified of them, or will be purged of everything."""


@attrs.frozen
class Pending:
    """The pending notifications of an edge: rows, and the union of the surrogate keys in them."""

    everything: bool
    ids: list[int]
    keys: list[str]


@statement(
    """
    WITH owed AS MATERIALIZED (
        SELECT edge_purges.id, edge_purges.keys FROM edge_purges
        WHERE edge_purges.edge_id = %(edge_id)s AND edge_purges.created_at <= %(until)s
        ORDER BY edge_purges.id LIMIT %(limit)s::integer
    )
    SELECT edges.purge_everything AS everything, ARRAY(SELECT owed.id FROM owed) AS ids,
        ARRAY(SELECT DISTINCT unnest(owed.keys) FROM owed) AS keys
    FROM edges WHERE edges.id = %(edge_id)s
    """,
    prepared=True,
)
async def pending(database: Executor, edge_id: int, until: datetime.datetime, limit: int) -> Pending | None:
    """Return the `limit` oldest rows from before a moment, or None if no server lists the edge any more."""


@statement("""
    UPDATE edges SET failing_since = coalesce(failing_since, %(now)s), problem = %(problem)s,
        purge_everything = purge_everything OR %(purge_everything)s
    WHERE id = %(edge_id)s AND (failing_since IS NULL OR %(purge_everything)s AND NOT purge_everything
        OR problem IS DISTINCT FROM %(problem)s)
""")
async def set_failing(
    transaction: Transaction, edge_id: int, problem: str, *, purge_everything: bool
) -> None:
    """Record that the edge could not be notified, and the reason; with `purge_everything`, it will be purged
    of everything later."""


@statement("""
    UPDATE edges SET failing_since = coalesce(failing_since, %(now)s), problem = %(problem)s
    WHERE id = %(edge_id)s AND (failing_since IS NULL OR problem IS DISTINCT FROM %(problem)s)
        AND EXISTS (SELECT FROM edge_purges WHERE edge_purges.edge_id = %(edge_id)s)
""")
async def set_failing_while_owed(transaction: Transaction, edge_id: int, problem: str) -> None:
    """Record that the edge could not be notified, unless another process has notified it meanwhile."""


@statement("""
    UPDATE edges SET failing_since = NULL, problem = NULL,
        purge_everything = purge_everything AND NOT %(everything)s
    WHERE id = %(edge_id)s AND (failing_since IS NOT NULL OR purge_everything)
""")
async def set_notified(transaction: Transaction, edge_id: int, *, everything: bool) -> None:
    """Record that the edge has been notified; with `everything`, that it has been purged of everything."""
