"""What the tables hold, kept and brought back.

Each content that a table has had at a snapshot is copied once. Which content a table has now is known by how many rows
it has and by the newest transaction that has written one: every change makes one of them another. So only what has
changed is copied, and brought back.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from api_server.state import driver
from api_server.state.driver import Connection, Result
from api_server.testing import queries
from api_server.testing.queries import Table
from common.config_errors import ConfigError

#: Seconds that one statement may take.
TIMEOUT = 60.0
CONNECT_SECONDS = 5.0
#: A table whose file is so many times as large as it was, and at least so many bytes, is full of rows that were
#: replaced again and again.
LITTERED_TIMES, LITTERED_BYTES = 4, 256 * 1024
_LOOK = "forgelet_testing_look"


@attrs.frozen
class Content:
    """Of all tables: the names of the copies (none where a table was empty), and the last values of sequences (none
    where nothing was given yet)."""

    copies: Mapping[str, str | None]
    values: Mapping[str, int | None]


@attrs.frozen
class _Look:
    counts: Sequence[int]
    newest: Sequence[int | None]
    sizes: Sequence[int]
    values: Mapping[str, int | None]


@attrs.frozen
class _Known:
    """Which copy a table is the same as, while it has so many rows and this newest transaction."""

    copy: str | None
    count: int
    newest: int | None


class Tables:
    """All tables and sequences of a database, on a connection of their own. One call at a time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None
        self._can_look = False
        self._tables: list[Table] = []
        #: With the values that they begin with.
        self._sequences: dict[str, int] = {}
        self._known: dict[str, _Known] = {}
        #: How many rows each copy has.
        self._copies: dict[str, int] = {}
        self._made = 0
        #: How large the files of tables were when they were copied.
        self._sizes: dict[str, int] = {}
        self._littered: set[str] = set()

    async def open(self) -> None:
        """Raises `ConfigError` where the role may not do this or another server does, and `Unavailable`."""
        if not (await self.run(queries.ALONE)).rows[0][0]:
            raise ConfigError(
                "Another server for tests works with this database, whose state each would bring back under the other:"
                " give each a database of its own"
            )
        await self.run(queries.MAKE_SCHEMA)
        left = [queries.drop(name) for (name,) in (await self.run(queries.LEFT_COPIES)).rows]
        if left:
            await self.run("; ".join(left))
        self._tables = [Table(*row) for row in (await self.run(queries.TABLES)).rows]
        self._sequences = dict((await self.run(queries.SEQUENCES)).rows)

    def close(self) -> None:
        """Lets go of the connection; the next call makes another one."""
        if self._connection is not None:
            self._connection.close()

    async def run(self, statements: str, **parameters: Any) -> Result:
        """What the last of these statements gives. Raises `Unavailable`."""
        if self._connection is None or self._connection.closed:
            self._connection, self._can_look = await self._connected(), False
            await self._connection.command(queries.WITHOUT_TRIGGERS)
            await self._connection.command(queries.ALONE)
        return await self._connection.run(statements, parameters)

    async def take(self) -> Content:
        """What they hold now."""
        seen = await self._look()
        copying: list[str] = []
        for position, table in enumerate(self._tables):
            if self._is_known(table, seen, position):
                continue
            name = None
            if seen.counts[position]:
                self._made += 1
                name = f"copy_{self._made}"
                copying.append(queries.copy(table, name))
                self._copies[name] = seen.counts[position]
            self._known[table.name] = _Known(name, seen.counts[position], seen.newest[position])
            self._sizes[table.name] = seen.sizes[position]
        if copying:
            await self.run("; ".join(copying))
        return Content({name: known.copy for name, known in self._known.items()}, seen.values)

    async def bring_back(self, content: Content) -> None:
        """Has them hold that again, in one transaction."""
        seen = await self._look()
        changed = [
            (table, content.copies[table.name])
            for position, table in enumerate(self._tables)
            if not self._is_known(table, seen, position)
            or self._known[table.name].copy != content.copies[table.name]
        ]
        statements = [queries.bring_back(table, copy) for table, copy in changed]
        moved = {name: value for name, value in content.values.items() if seen.values[name] != value}
        if moved:
            statements.append(
                queries.set_sequences(
                    {
                        name: (self._sequences[name] if value is None else value, value is not None)
                        for name, value in moved.items()
                    }
                )
            )
        if statements:
            transaction = await self._in_a_transaction(statements)
            for table, copy in changed:
                rows = 0 if copy is None else self._copies[copy]
                self._known[table.name] = _Known(copy, rows, transaction if rows else None)

    async def _in_a_transaction(self, statements: Iterable[str]) -> int:
        """The number of the transaction, which has been committed."""
        try:
            begun = await self.run("; ".join(["BEGIN", *statements, queries.THIS_TRANSACTION]))
            await self.run("COMMIT")
        except BaseException:
            self.close()  # which rolls back
            raise
        return int(begun.rows[0][0])

    async def drop_others(self, named: Collection[str]) -> None:
        """Lets go of all copies but these, and those that tables are the same as."""
        used = {*named, *(known.copy for known in self._known.values())}
        unused = [name for name in self._copies if name not in used]
        if unused:
            await self.run("; ".join(map(queries.drop, unused)))
        for name in unused:
            del self._copies[name]

    async def clean_up(self) -> None:
        """Has PostgreSQL use the room again of rows that were replaced, in the tables where that are many."""
        if not self._littered:
            return
        connection = await self._connected()  # beside what else is asked
        try:
            while self._littered:
                await connection.command(queries.vacuum(self._littered.pop()))
        finally:
            connection.close()

    async def _connected(self) -> Connection:
        connection = await driver.open_connection(
            self._url,
            {"timezone": "UTC", "lock_timeout": int(TIMEOUT * 1000)},
            connect_timeout=CONNECT_SECONDS,
            answer_timeout=TIMEOUT,
            prepares=False,
        )
        if not (await connection.run(queries.MAY_REPLICATE, {})).rows[0][0]:
            connection.close()
            raise ConfigError(
                "A server for tests brings back what its tables held, which its role of the database may not do: as a"
                " superuser, run GRANT SET ON PARAMETER session_replication_role TO that role"
            )
        return connection

    async def _look(self) -> _Look:
        if not self._can_look or self._connection is None or self._connection.closed:
            await self.run(queries.prepare_look(_LOOK, self._tables, self._sequences))
            self._can_look = True
        counts, newest, sizes, values = (await self.run(f"EXECUTE {_LOOK}")).rows[0]
        for table, size in zip(self._tables, sizes, strict=True):
            if size > max(LITTERED_BYTES, LITTERED_TIMES * self._sizes.get(table.name, 0)):
                self._littered.add(table.name)
        return _Look(counts, newest, sizes, dict(zip(self._sequences, values, strict=True)))

    def _is_known(self, table: Table, seen: _Look, position: int) -> bool:
        known = self._known.get(table.name)
        return known is not None and (known.count, known.newest) == (
            seen.counts[position],
            seen.newest[position],
        )
