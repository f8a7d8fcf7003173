"""How an entity's JSON is read, one at a time or as a page of a list, and how lists are searched and bounded.

An entity is a SELECT over a CTE named `page` that yields `position`, `id` and `entity` (the JSON). The statements here
put different rows under the name `page`; they are composed when the module that holds them is imported.

What a search finds is looked up first, by an index over all runs of three characters (`..._search`). Where that is not
too much, the list is read by its ids; else it is read in its own order, and each row is looked at: where much is found,
a page is soon full."""

import re
from collections.abc import Mapping
from importlib import resources
from types import ModuleType
from typing import Any

import attrs

from api_server.state.database import Database, EntityRow, Executor, Transaction
from api_server.state.errors import TooLarge
from api_server.state.statements import Statement

#: Counting stops here: what a list holds beyond it is "many" (X-Total goes away).
MOST_COUNTED = 10_000
#: Bytes of a page. They are in memory several times, and a hundred descriptions may have 100 MiB.
MOST_BYTES = 10 * 1024 * 1024
_INCLUDE = re.compile(r"^ *-- include: (\w+)$", re.MULTILINE)


def read_sql(
    package: ModuleType | str, name: str = "entities.sql", known: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The named parts of an .sql file: each begins with a line `-- name: <name>`. A line `-- include: <name>` stands
    for a part that came before or is `known` from elsewhere."""
    text = resources.files(package).joinpath(name).read_text()
    parts = dict(known or {})
    for part in text.split("-- name: ")[1:]:
        title, body = part.split("\n", 1)
        included = _INCLUDE.sub(lambda match: parts[match[1]], body)
        parts[title.strip()] = included.strip().rstrip(";")
    return parts


def entity_statement(entity: str, rows: str, *, planned_once: bool = False) -> Statement[EntityRow]:
    """A statement that yields `entity` (JSON text) for each row of `rows`: a SELECT, or an INSERT or UPDATE with
    RETURNING * (whose new values are what is shown)."""
    return Statement(
        f"WITH source AS ({rows}), page AS (SELECT source.*, 1::bigint AS position FROM source), "
        f"entities AS ({entity}) SELECT entities.id, entities.entity::text AS entity FROM entities",
        EntityRow,
        planned_once=planned_once,
    )


@attrs.frozen
class Page:
    """Which part of a list is wanted: `size` rows after `offset` rows (offset) or after the row `after` (keyset)."""

    size: int = 20
    offset: int = 0
    after: int | None = None
    order: str = "id"
    descending: bool = True
    #: Offset pagination tells how many rows there are; behind a row (`after`) nothing is counted.
    counted: bool = True


@attrs.frozen
class ListPage:
    """A page as read, which is the one row of a list's statement: the JSON array as text, whether more follows, the
    last id on it, and the rows in all (None when not counted, MOST_COUNTED + 1 when there are more than are counted).
    Of a page above MOST_BYTES the body is empty.
    """

    body: str
    more: bool
    last_id: int | None
    total: int | None


class ListQuery:
    """The statements of one list: `entity` over the rows of `rows`, which can be put in each of `orders`
    (public name -> column). Rows need a unique `id`. `counted` are the same rows as a statement to count them by,
    where `rows` itself stops at the page's end.

    Where ids ascend with a moment, `moment` names its table and column: rows are then in the order of both, so that one
    index serves the order and a range of time, and partitions by that column are read one after the other. Planning
    over all of them costs more than reading a page, so it is done once. So it is, where `planned_once` says so, for
    entities that are joined of many tables and rows that one index finds whatever the values are.
    """

    def __init__(
        self,
        entity: str,
        rows: str,
        orders: Mapping[str, str] | None = None,
        *,
        counted: str = "SELECT FROM matching",
        moment: str | None = None,
        planned_once: bool = False,
    ) -> None:
        self.orders = {"id": "id", **(orders or {})}
        self._statements = {
            (name, descending, continued, counts): Statement(
                _listing(
                    entity,
                    rows,
                    column,
                    moment,
                    descending=descending,
                    continued=continued,
                    total=_total(counted) if counts else "NULL::bigint",
                ),
                ListPage,
                planned_once=planned_once or moment is not None,
            )
            for name, column in self.orders.items()
            for descending in (True, False)
            # What is not executed of a plan is set up nevertheless: a page that is not counted has its own statement.
            for continued, counts in ((False, False), (False, True), (True, False))
        }

    def statement(self, page: Page) -> Statement[ListPage]:
        """What reads a page like this one."""
        continued = page.after is not None
        return self._statements[page.order, page.descending, continued, page.counted and not continued]

    async def read(self, database: Executor, page: Page, **parameters: object) -> ListPage:
        """Read the page. Raise `TooLarge`."""
        if not page.counted or not isinstance(database, Database):
            return await self._read(database, page, parameters)
        key = (self, repr(parameters))
        generation = database.generation
        known = database.counts.get(key, generation)
        listed = await self._read(database, attrs.evolve(page, counted=known is None), parameters)
        if known is not None:
            return attrs.evolve(listed, total=known)
        database.counts.keep(key, generation, listed.total or 0)
        return listed

    async def _read(self, database: Executor, page: Page, parameters: Mapping[str, object]) -> ListPage:
        listed = await database.shown(
            self.statement(page),
            page_size=page.size,
            page_offset=page.offset,
            page_after=page.after,
            **parameters,
        )
        if not listed.body:
            raise TooLarge
        return listed


def _listing(
    entity: str,
    rows: str,
    column: str,
    moment: str | None,
    *,
    descending: bool,
    continued: bool,
    total: str,
) -> str:
    direction = "DESC" if descending else "ASC"
    by_id = f"id {direction}" if moment is None else f"{moment.split('.')[1]} {direction}, id {direction}"
    order = by_id if column == "id" else f"{column} {direction}, {by_id}"
    return f"""
        WITH matching AS NOT MATERIALIZED ({rows}),
        probe AS (
            SELECT matching.* FROM matching
            WHERE {_after(moment, descending=descending) if continued else "true"}
            ORDER BY {order}
            LIMIT %(page_size)s::bigint + 1 OFFSET %(page_offset)s::bigint
        ),
        page AS (
            SELECT probe.*, row_number() OVER (ORDER BY {order}) AS position FROM probe
            ORDER BY {order} LIMIT %(page_size)s::bigint
        ),
        entities AS ({entity})
        SELECT (
                SELECT CASE WHEN octet_length(list) <= {MOST_BYTES} THEN list ELSE '' END
                FROM (SELECT coalesce(json_agg(entity ORDER BY position), '[]')::text AS list FROM entities) aggregated
            ) AS body,
            (SELECT count(*) FROM probe) > %(page_size)s::bigint AS more,
            (SELECT id FROM page ORDER BY position DESC LIMIT 1) AS last_id,
            {total} AS total
    """


def _total(counted: str) -> str:
    """The number of rows in all. A page at the end of the list tells it: there is nothing to be counted."""
    return f"""
        CASE WHEN (SELECT count(*) FROM probe) BETWEEN least(%(page_offset)s::bigint, 1) AND %(page_size)s::bigint
            THEN least(%(page_offset)s::bigint + (SELECT count(*) FROM probe), {MOST_COUNTED + 1})
            ELSE (SELECT count(*) FROM ({counted} LIMIT {MOST_COUNTED + 1}) counted) END"""


def _after(moment: str | None, *, descending: bool) -> str:
    """The condition of rows behind the one that `page_after` names.

    Only where it is wanted: an index is entered at the first of its conditions, not at the narrowest one, and would be
    read from its end up to a wanted range of time.
    """
    comparison = "<" if descending else ">"
    if moment is None:
        return f"matching.id {comparison} %(page_after)s::bigint"
    table, column = moment.split(".")
    # By the id alone: among the rows of the list its index would be read up to it, in all partitions. A row that is
    # gone was among the oldest ones: nothing is older, everything else is newer.
    return f"""(matching.{column}, matching.id) {comparison} (
                coalesce((SELECT known.{column} FROM {table} known WHERE known.id = %(page_after)s::bigint),
                    '-infinity'), %(page_after)s::bigint)"""


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
        matches = f"strpos({text}, {pattern}) > 0"
        by_others = [f"SELECT {table}.id FROM {table} WHERE {other}" for other in others]
        by_index = f"""
            (SELECT {table}.id FROM {table}
            WHERE {matches} AND trigrams({text}) @> trigrams(left({pattern}, {MOST_LOOKED_UP})) LIMIT {MOST_FOUND + 1})
        """
        self._statement = f"SELECT ARRAY({' UNION ALL '.join([by_index, *by_others])}) AS ids"
        #: What rows of a list have to meet; its further parameters are those of `find`, and `found`.
        self.condition = f"""
            (%(found)s::bigint[] IS NULL OR {table}.id = ANY (%(found)s::bigint[]))
            AND (coalesce(%(search)s::text, '') = '' OR {" OR ".join([matches, *others])})
        """

    async def find(self, database: Executor, search: str | None, **parameters: Any) -> list[int] | None:
        """Ids of all that is found; None where nothing is searched for, and where it is too much."""
        if not search:
            return None
        ids: list[int] = await database.value(self._statement, search=search, **parameters)
        return ids if len(ids) <= MOST_FOUND else None


HOLD_QUOTA = "SELECT pg_advisory_xact_lock(hashtextextended(%(quota)s, 0))"


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
        await transaction.run(HOLD_QUOTA, quota=f"{self.table} {self.column} {owner_id}")
        return int(await transaction.value(self._count, owner_id=owner_id)) > most
