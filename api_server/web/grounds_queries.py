"""The statement that locks the names of what requests are judged on."""

from collections.abc import Set

from api_server.state.database import Transaction
from api_server.state.statements import Statement

#: In the order given. Sharing and holding alone have to be told apart within one pass, or the order would be lost.
LOCK = Statement("""
    SELECT CASE WHEN wanted.alone
        THEN pg_advisory_xact_lock(hashtextextended(wanted.name, 5))
        ELSE pg_advisory_xact_lock_shared(hashtextextended(wanted.name, 5)) END
    FROM unnest(%(names)s::text[], %(alone)s::boolean[]) wanted (name, alone)
""")


async def lock(transaction: Transaction, *, shared: Set[str], alone: Set[str]) -> None:
    """Holds these names until the transaction ends, with others or alone. Raises `LockNotAvailable`."""
    names = sorted(shared | alone)
    await transaction.run(LOCK, names=names, alone=[name in alone for name in names])
