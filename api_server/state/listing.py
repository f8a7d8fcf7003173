"""Reading an entity's JSON, one at a time or as a page of a list; searching and limiting lists.

An entity is a SELECT over a CTE named `page` that yields `position`, `id` and `entity` (the JSON, or its
text). The statements here provide different rows as `page`; they are composed when the module that holds
them is imported.

A search first looks up the ids of its results in a trigram index (`..._search`). If these are not too many,
the list is read by id. Otherwise it is read in its own order and each row is compared: with many results, a
page fills quickly.
"""

import re
from collections.abc import Mapping
from importlib import resources
from types import ModuleType
from typing import Any

import attrs

from api_server.state.database import Database, EntityRow, Executor, Transaction
from api_server.state.statements import Statement
from common.concurrency import ConcurrencyLimiter

#: Counting stops at this number; a longer list has no X-Total header.
MAX_COUNTED = 10_000
#: Maximum bytes of a page, since it is in memory several times. On a larger page, each row above its share is shortened
#: (`shortened` of functions.sql).
MAX_BYTES = 10 * 1024 * 1024
#: Maximum characters of a text on a page whose texts are above MAX_BYTES.
LISTED_TEXT = 2000
_INCLUDE = re.compile(r"^ *-- include: (\w+)$", re.MULTILINE)


def listed_text(column: str, size: str = "SELECT sum(octet_length(listed.{0})) FROM page listed") -> str:
    """Return the SQL of a text of any length: the column of `page`, cut if the texts of the page (or `size`, a
    SELECT) have more bytes than a page may have. So PostgreSQL does not build what it would shorten."""
    size = size.format(column)
    return f"CASE WHEN ({size}) > {MAX_BYTES} THEN left(page.{column}, {LISTED_TEXT}) ELSE page.{column} END"


def read_sql(
    package: ModuleType | str, name: str = "entities.sql", extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the named parts of an .sql file. Each begins with a line `-- name: <name>`; a line `-- include:
    <name>` is replaced by an earlier part or by one of `extra`; `long_description` is a description of any length."""
    text = resources.files(package).joinpath(name).read_text()
    parts = {"long_description": listed_text("description"), **(extra or {})}
    for part in text.split("-- name: ")[1:]:
        title, body = part.split("\n", 1)
        included = _INCLUDE.sub(lambda match: parts[match[1]], body)
        parts[title.strip()] = included.strip().rstrip(";")
    return parts


def entity_statement(entity: str, rows: str) -> Statement[EntityRow]:
    """Return a statement that yields `entity` (JSON text) for each row of `rows`, which is a SELECT, or an
    INSERT or UPDATE with RETURNING * (its new values are shown)."""
    return Statement(
        f"WITH source AS ({rows}), page AS (SELECT source.*, 1::bigint AS position FROM source), "
        f"entities AS ({entity}) SELECT entities.id, entities.entity::text AS entity FROM entities",
        EntityRow,
    )


@attrs.frozen
class Page:
    """The part of a list to read: `size` rows after `offset` rows (offset) or after the row `after`
    (keyset)."""

    size: int = 20
    offset: int = 0
    after: int | None = None
    order: str = "id"
    descending: bool = True
    #: Whether to count all rows. Offset pagination reports the total; keyset pagination (`after`) does not
    #: count.
    counted: bool = True

    @property
    def values(self) -> dict[str, object]:
        """The parameters of a statement that reads this page."""
        return {"page_size": self.size, "page_offset": self.offset, "page_after": self.after}


@attrs.frozen
class ListPage:
    """A page as read, which is the one row of a list's statement: the JSON array as text, whether more rows
    follow, the last id on the page, and the total number of rows (None if not counted, MAX_COUNTED + 1 if
    counting stopped)."""

    body: str
    more: bool
    last_id: int | None
    total: int | None


#: The bytes of a row's share of a page, beside commas and brackets.
_SHARE = f"({MAX_BYTES} / %(page_size)s::bigint - 2)"
#: The JSON array of a page whose rows are all within their share, as those of nearly every page are; otherwise an empty
#: text. PostgreSQL stops building rows soon after the second that is above its share, because the number of such rows
#: can only grow. No more than a page is in memory. OFFSET 0 keeps the planner from building each entity twice.
_BODY = f"""
    SELECT CASE WHEN max(long) > 0 THEN '' ELSE concat('[', string_agg(entity, ',' ORDER BY position), ']') END
    FROM (
        SELECT position, entity, count(*) FILTER (WHERE entity IS NULL) OVER (ROWS UNBOUNDED PRECEDING) AS long
        FROM (
            SELECT position, CASE WHEN octet_length(entity::text) <= {_SHARE} THEN entity::text END AS entity
            FROM (SELECT position, entity FROM entities OFFSET 0) built
        ) listed
    ) counted
    WHERE long <= 1
"""
#: The JSON array of other pages. This takes a fifth longer, because all rows are kept (on disk, if they are many bytes)
#: before the first is used.
_LARGE_BODY = f"""
    WITH listed AS MATERIALIZED (SELECT position, entity::text AS entity FROM entities)
    SELECT concat('[', string_agg(
        CASE WHEN whole.bytes <= {MAX_BYTES} THEN entity ELSE shortened(entity, {_SHARE}) END,
        ',' ORDER BY position), ']')
    FROM listed CROSS JOIN (SELECT sum(octet_length(entity) + 1) + 1 AS bytes FROM listed) whole
"""
#: These pages cost up to seconds of PostgreSQL's processor, so a few are read at once, and others wait for them.
_LARGE_PAGES = ConcurrencyLimiter(2, 2, timeout=15.0)


class ListQuery:
    """The statements of one list: `entity` over the rows of `rows`, which can be sorted by each of `orders`
    (public name -> column). Rows need a unique `id`. If `rows` stops at the page's end, `counted` is a
    statement for the same rows without that limit, for counting.

    If ids ascend with time, `moment` names the table and column of the time. Rows are then sorted by time and
    id, so one index serves the order and a time range, and partitions by that column are read one after the
    other. Planning over all of them costs more than reading a page, so it is done once per connection.
    `planned_once` requests the same for entities joined from many tables whose rows one index finds for all
    values. `found_once` is for few rows that are costly to find: the page and the count share them.
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
        found_once: bool = False,
    ) -> None:
        self.orders = {"id": "id", **(orders or {})}
        self._statements = {
            (name, descending, continued, counts, body): Statement(
                _listing(
                    entity,
                    rows,
                    column,
                    moment,
                    descending=descending,
                    continued=continued,
                    found_once=found_once,
                    body=body,
                    total=_total(counted) if counts else "NULL::bigint",
                ),
                ListPage,
                planned_once=planned_once or moment is not None,
            )
            for name, column in self.orders.items()
            for descending in (True, False)
            # PostgreSQL sets up even those parts of a plan that it does not execute, so an uncounted page has
            # its own statement.
            for continued, counts in ((False, False), (False, True), (True, False))
            for body in (_BODY, _LARGE_BODY)
        }

    def statement(self, page: Page, body: str = _BODY) -> Statement[ListPage]:
        """Return the statement that reads such a page."""
        continued = page.after is not None
        return self._statements[page.order, page.descending, continued, page.counted and not continued, body]

    async def read(self, database: Executor, page: Page, **parameters: object) -> ListPage:
        if not page.counted or not isinstance(database, Database):
            return await self._read(database, page, parameters)
        key = (self, repr(parameters))
        generation = database.generation
        total = database.counts.get(key, generation)
        result = await self._read(database, attrs.evolve(page, counted=total is None), parameters)
        if total is not None:
            return attrs.evolve(result, total=total)
        database.counts.keep(key, generation, result.total or 0)
        return result

    async def _read(self, database: Executor, page: Page, parameters: Mapping[str, object]) -> ListPage:
        values = {**parameters, **page.values}
        result = await database.shown(self.statement(page), **values)
        if result.body:
            return result
        async with _LARGE_PAGES.slot():
            return await database.shown(self.statement(page, _LARGE_BODY), **values)


def _listing(
    entity: str,
    rows: str,
    column: str,
    moment: str | None,
    *,
    descending: bool,
    continued: bool,
    found_once: bool,
    body: str,
    total: str,
) -> str:
    direction = "DESC" if descending else "ASC"
    by_id = f"id {direction}" if moment is None else f"{moment.split('.')[1]} {direction}, id {direction}"
    order = by_id if column == "id" else f"{column} {direction}, {by_id}"
    # Rows are numbered as they come out of the sorted subquery. A window with an order would sort them again.
    return f"""
        WITH matching AS {"" if found_once else "NOT "}MATERIALIZED ({rows}),
        probe AS (
            SELECT listed.*, row_number() OVER () AS position FROM (
                SELECT matching.* FROM matching
                WHERE {_after(moment, descending=descending) if continued else "true"}
                ORDER BY {order}
                LIMIT %(page_size)s::bigint + 1 OFFSET %(page_offset)s::bigint
            ) listed
        ),
        page AS NOT MATERIALIZED (SELECT probe.* FROM probe WHERE probe.position <= %(page_size)s::bigint),
        entities AS ({entity})
        SELECT ({body}) AS body,
            read.number > %(page_size)s::bigint AS more,
            (SELECT id FROM page WHERE position = least(read.number, %(page_size)s::bigint)) AS last_id,
            {total} AS total
        FROM (SELECT count(*) AS number FROM probe) read
    """


def _total(rows: str) -> str:
    """Return the SQL of the total number of rows. A page at the end of the list determines it without
    counting."""
    return f"""
        CASE WHEN read.number BETWEEN least(%(page_offset)s::bigint, 1) AND %(page_size)s::bigint
            THEN least(%(page_offset)s::bigint + read.number, {MAX_COUNTED + 1})
            ELSE (SELECT count(*) FROM ({rows} LIMIT {MAX_COUNTED + 1}) counted) END"""


def _after(moment: str | None, *, descending: bool) -> str:
    """Return the condition for rows behind the one that `page_after` names.

    It is added only when needed: PostgreSQL enters an index at its first condition, not at the most selective
    one, and would read from the end of the index up to the requested time range.
    """
    comparison = "<" if descending else ">"
    if moment is None:
        return f"matching.id {comparison} %(page_after)s::bigint"
    table, column = moment.split(".")
    # Find the row by id alone: with the list's conditions, PostgreSQL would read an index in all partitions.
    # A row that no longer exists was among the oldest: everything else is newer.
    return f"""(matching.{column}, matching.id) {comparison} (
                coalesce((SELECT known.{column} FROM {table} known WHERE known.id = %(page_after)s::bigint),
                    '-infinity'), %(page_after)s::bigint)"""


#: A search with more results than this reads the list in its own order.
MAX_FOUND = 2_000
#: Maximum characters of a search term that are looked up in the index: splitting a text takes quadratic time.
MAX_LOOKED_UP = 64


class Search:
    """A search of `table` by a part of its columns `first` or `second` (terms of fewer than three characters
    must match the whole value), or by one of the conditions `others`, which use the parameter `search`."""

    def __init__(self, table: str, first: str, second: str, *others: str) -> None:
        text = f"searchable({table}.{first}, {table}.{second})"
        pattern = "search_pattern(%(search)s::text)"
        matches = f"strpos({text}, {pattern}) > 0"
        by_others = [f"SELECT {table}.id FROM {table} WHERE {other}" for other in others]
        by_index = f"""
            (SELECT {table}.id FROM {table}
            WHERE {matches} AND trigrams({text}) @> trigrams(left({pattern}, {MAX_LOOKED_UP})) LIMIT {MAX_FOUND + 1})
        """
        self._statement = f"SELECT ARRAY({' UNION ALL '.join([by_index, *by_others])}) AS ids"
        #: The condition for rows of a list; its parameters are those of `find`, and `found`.
        self.condition = f"""
            (%(found)s::bigint[] IS NULL OR {table}.id = ANY (%(found)s::bigint[]))
            AND (coalesce(%(search)s::text, '') = '' OR {" OR ".join([matches, *others])})
        """

    async def find(self, database: Executor, search: str | None, **parameters: Any) -> list[int] | None:
        """Return the ids of all results. Return None if nothing is searched for or there are too many
        results."""
        if not search:
            return None
        ids: list[int] = await database.value(self._statement, search=search, **parameters)
        return ids if len(ids) <= MAX_FOUND else None


HOLD_QUOTA = "SELECT pg_advisory_xact_lock(hashtextextended(%(quota)s, 0))"


@attrs.frozen
class Quota:
    """A limit on the number of rows of `table` with the same owner in `column`."""

    table: str
    column: str
    _count: str = attrs.field(init=False)

    @_count.default
    def _composed(self) -> str:
        return f"SELECT count(*) FROM {self.table} WHERE {self.table}.{self.column} = %(owner_id)s"

    async def is_exceeded(self, transaction: Transaction, owner_id: int, limit: int) -> bool:
        """Return whether the owner has more than `limit` rows (0: no limit). Call it after adding a row, in
        the same transaction: it makes other transactions that add rows for this owner wait, so two of them
        cannot exceed the limit together."""
        if not limit:
            return False
        await transaction.run(HOLD_QUOTA, quota=f"{self.table} {self.column} {owner_id}")
        return int(await transaction.value(self._count, owner_id=owner_id)) > limit
