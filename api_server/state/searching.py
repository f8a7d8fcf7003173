"""Searches by parts of names, in all lists the same way.

What is found is looked up first, by an index over all runs of three characters (`..._search`). Where that is not too
much, the list is read by its ids; else it is read in its own order, and each row is looked at: where much is found, a
page is soon full.
"""

from typing import Any

from api_server.state.database import Executor

#: Beyond this many ids a list is read in its own order.
MOST_FOUND = 2_000
#: So many characters of what is searched for the index is asked for: cutting a text takes the square of its length.
MOST_LOOKED_UP = 64


class Search:
    """Of `table`, by a part of its columns `first` or `second` (from three characters on, else the whole), or by one of
    the conditions `others`, which know the parameter `search`."""

    def __init__(self, table: str, first: str, second: str, *others: str) -> None:
        text = f"searchable({table}.{first}, {table}.{second})"
        pattern = "search_pattern(%(search)s::text)"
        found = f"strpos({text}, {pattern}) > 0"
        by_others = [f"SELECT {table}.id FROM {table} WHERE {other}" for other in others]
        by_index = f"""
            (SELECT {table}.id FROM {table}
            WHERE {found} AND trigrams({text}) @> trigrams(left({pattern}, {MOST_LOOKED_UP})) LIMIT {MOST_FOUND + 1})
        """
        self._statement = f"SELECT ARRAY({' UNION ALL '.join([by_index, *by_others])}) AS ids"
        #: What rows of a list have to meet; its further parameters are those of `find`, and `found`.
        self.condition = f"""
            (%(found)s::bigint[] IS NULL OR {table}.id = ANY (%(found)s::bigint[]))
            AND (coalesce(%(search)s::text, '') = '' OR {" OR ".join([found, *others])})
        """

    async def find(self, database: Executor, search: str | None, **parameters: Any) -> list[int] | None:
        """Ids of all that is found; None where nothing is searched for, and where it is too much."""
        if not search:
            return None
        ids: list[int] = await database.value(self._statement, search=search, **parameters)
        return ids if len(ids) <= MOST_FOUND else None
