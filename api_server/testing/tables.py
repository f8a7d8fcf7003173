"""The contents of the tables: copying and restoring them.

Each content that a table has had at a snapshot is copied once. The present content of a table is identified
by its number of rows and the newest transaction that has written one: every change modifies one of them. So
only changed tables are copied and restored.
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
#: A table whose file has grown this many times, and to at least this many bytes, is full of dead rows.
LITTERED_TIMES, LITTERED_BYTES = 4, 256 * 1024
_MEASURE = "forgelet_testing_look"


@attrs.frozen
class Content:
    """The contents of all tables: the names of their copies (None for an empty table), and the last values of
    sequences (None if there is none yet)."""

    copies: Mapping[str, str | None]
    values: Mapping[str, int | None]


@attrs.frozen
class _Measured:
    counts: Sequence[int]
    newest: Sequence[int | None]
    sizes: Sequence[int]
    values: Mapping[str, int | None]


@attrs.frozen
class _Copy:
    """The copy that a table is equal to, as long as it has this number of rows and this newest
    transaction."""

    copy: str | None
    count: int
    newest: int | None


class Tables:
    """All tables and sequences of a database, on a separate connection. One call at a time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None
        self._is_prepared = False
        self._tables: list[Table] = []
        #: The sequences with their first values.
        self._sequences: dict[str, int] = {}
        self._current: dict[str, _Copy] = {}
        #: The number of rows of each copy.
        self._copies: dict[str, int] = {}
        self._count = 0
        #: The sizes of the tables' files when they were copied.
        self._sizes: dict[str, int] = {}
        self._littered: set[str] = set()

    async def open(self) -> None:
        """Connect and read the catalog. Raise `ConfigError` if the role lacks the rights or another server
        for tests uses the database, and `Unavailable`."""
        if not (await self.run(queries.ALONE)).rows[0][0]:
            raise ConfigError(
                "Another server for tests works with this database, whose state each would bring back under the other:"
                " give each a database of its own"
            )
        await self.run(queries.MAKE_SCHEMA)
        stale = [queries.drop(name) for (name,) in (await self.run(queries.STALE_COPIES)).rows]
        if stale:
            await self.run("; ".join(stale))
        self._tables = [Table(*row) for row in (await self.run(queries.TABLES)).rows]
        self._sequences = dict((await self.run(queries.SEQUENCES)).rows)

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        if self._connection is not None:
            self._connection.close()

    async def run(self, statements: str, **parameters: Any) -> Result:
        """Run the statements and return the result of the last one. Raise `Unavailable`."""
        if self._connection is None or self._connection.closed:
            self._connection, self._is_prepared = await self._connected(), False
            await self._connection.command(queries.WITHOUT_TRIGGERS)
            await self._connection.command(queries.ALONE)
        return await self._connection.run(statements, parameters)

    async def take(self) -> Content:
        """Return the present contents, copying those that have no copy yet."""
        measured = await self._measure()
        copying: list[str] = []
        for position, table in enumerate(self._tables):
            if self._is_copied(table, measured, position):
                continue
            name = None
            if measured.counts[position]:
                self._count += 1
                name = f"copy_{self._count}"
                copying.append(queries.copy(table, name))
                self._copies[name] = measured.counts[position]
            self._current[table.name] = _Copy(name, measured.counts[position], measured.newest[position])
            self._sizes[table.name] = measured.sizes[position]
        if copying:
            await self.run("; ".join(copying))
        return Content({name: copy.copy for name, copy in self._current.items()}, measured.values)

    async def bring_back(self, content: Content) -> None:
        """Restore the contents in one transaction."""
        measured = await self._measure()
        changed = [
            (table, content.copies[table.name])
            for position, table in enumerate(self._tables)
            if not self._is_copied(table, measured, position)
            or self._current[table.name].copy != content.copies[table.name]
        ]
        statements = [queries.bring_back(table, copy) for table, copy in changed]
        moved = {name: value for name, value in content.values.items() if measured.values[name] != value}
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
                self._current[table.name] = _Copy(copy, rows, transaction if rows else None)

    async def _in_a_transaction(self, statements: Iterable[str]) -> int:
        """Run and commit the statements in a transaction, and return its number."""
        try:
            result = await self.run("; ".join(["BEGIN", *statements, queries.THIS_TRANSACTION]))
            await self.run("COMMIT")
        except BaseException:
            self.close()  # this rolls back
            raise
        return int(result.rows[0][0])

    async def drop_others(self, names: Collection[str]) -> None:
        """Delete all copies except these and those that tables are equal to."""
        used = {*names, *(current.copy for current in self._current.values())}
        unused = [name for name in self._copies if name not in used]
        if unused:
            await self.run("; ".join(map(queries.drop, unused)))
        for name in unused:
            del self._copies[name]

    async def clean_up(self) -> None:
        """Let PostgreSQL reuse the space of dead rows in the tables that have many."""
        if not self._littered:
            return
        connection = await self._connected()  # in addition to the usual one, which VACUUM would block
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

    async def _measure(self) -> _Measured:
        if not self._is_prepared or self._connection is None or self._connection.closed:
            await self.run(queries.prepare_look(_MEASURE, self._tables, self._sequences))
            self._is_prepared = True
        counts, newest, sizes, values = (await self.run(f"EXECUTE {_MEASURE}")).rows[0]
        for table, size in zip(self._tables, sizes, strict=True):
            if size > max(LITTERED_BYTES, LITTERED_TIMES * self._sizes.get(table.name, 0)):
                self._littered.add(table.name)
        return _Measured(counts, newest, sizes, dict(zip(self._sequences, values, strict=True)))

    def _is_copied(self, table: Table, measured: _Measured, position: int) -> bool:
        current = self._current.get(table.name)
        return current is not None and (current.count, current.newest) == (
            measured.counts[position],
            measured.newest[position],
        )
