"""What was read a moment ago: a short memory in front of look-ups that every request repeats."""

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from cachetools import TTLCache

from api_server.state.counts import REMEMBERED_FOR
from api_server.state.database import Database

ValueT = TypeVar("ValueT")


class LookupCache(Generic[ValueT]):
    """Values by key, forgotten after REMEMBERED_FOR and whenever this process commits anything, or hears that
    another has changed rights."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._values: TTLCache[Hashable, tuple[int, ValueT]] = TTLCache(maxsize=10_000, ttl=REMEMBERED_FOR)

    async def get(self, key: Hashable, load: Callable[[], Awaitable[ValueT | None]]) -> ValueT | None:
        """The value under `key`, loaded where it is not remembered. Absence is not remembered."""
        known = self._values.get(key)
        if known is not None and known[0] == self._database.generation:
            return known[1]
        generation = self._database.generation
        value = await load()
        if value is not None:
            self._values[key] = generation, value
        return value
