"""How many things of a kind somebody may have, where a list of them is read as a whole."""

import attrs

from api_server.state.database import Transaction

HOLD = "SELECT pg_advisory_xact_lock(hashtextextended(%(quota)s, 0))"


@attrs.frozen
class Quota:
    """A bound on the rows of `table` that have one owner in `column`."""

    table: str
    column: str
    _count: str = attrs.field(init=False)

    @_count.default
    def _composed(self) -> str:
        return f"SELECT count(*) FROM {self.table} WHERE {self.table}.{self.column} = %(owner_id)s"

    async def is_exceeded(self, transaction: Transaction, owner_id: int, most: int) -> bool:
        """Whether there are more than `most` (0: no bound); to be asked after one was added, in its transaction. Others
        who add for this owner wait for its end, so that no two pass the bound together."""
        if not most:
            return False
        await transaction.run(HOLD, quota=f"{self.table} {self.column} {owner_id}")
        return int(await transaction.value(self._count, owner_id=owner_id)) > most
