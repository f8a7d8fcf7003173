"""Where columns come from: tables, queries and common table expressions, and which of them a join leaves empty."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from scripts.schemas.nodes import Node
from scripts.schemas.values import Value, union

if TYPE_CHECKING:
    from scripts.schemas.evaluator import Evaluator

_TABLE, _SUBQUERY, _JOIN, _CTE = "0", "1", "2", "6"
_LEFT, _FULL, _RIGHT = "1", "2", "3"
_SELECT = "1"


@attrs.frozen
class Row:
    """A row as a whole: its columns by their numbers, and whether there may be none."""

    column: Callable[[int], Value]
    nullable: bool = False


class Scope:
    """A query, the one around it, and the rows that it is called with."""

    def __init__(
        self,
        evaluator: "Evaluator",
        query: Node,
        around: "Scope | None",
        given: list[Value | Row] | None = None,
    ) -> None:
        self.evaluator = evaluator
        self.query = query
        self.around = around
        self.given: list[Value | Row] | None = around.given if around is not None and given is None else given
        self._optional = set(_optional(query["jointree"]))
        self._columns: dict[tuple[int, int], Value] = {}

    def above(self, levels: int) -> "Scope":
        scope = self
        for _ in range(levels):
            assert scope.around is not None
            scope = scope.around
        return scope

    def row(self, number: int) -> Row:
        return Row(lambda column: self.column(number, column), number in self._optional)

    def column(self, number: int, column: int, kind: int = 0) -> Value:
        """Of the entry with this number of the query's range table; `kind` is the column's type where nothing else is
        known."""
        if (number, column) not in self._columns:
            value = self._column(self.query["rtable"][number - 1], column, kind)
            self._columns[number, column] = value.or_null(number in self._optional)
        return self._columns[number, column]

    def _column(self, entry: Node, column: int, kind: int) -> Value:
        match entry["rtekind"]:
            case "0":
                return self.evaluator.stored(entry.number("relid"), column)
            case "1":
                return Scope(self.evaluator, entry["subquery"], self).output(column)
            case "2":
                return self.evaluator.value(entry.list("joinaliasvars")[column - 1], self)
            case "3" if (called := self._called(entry)) is not None:
                return called.output(column)
            case "6":
                return self._of_cte(entry, column)
            case _:
                return self.evaluator.of_type(kind or _type_of(entry, column)).or_null()

    def _called(self, entry: Node) -> "Scope | None":
        (call,) = entry.list("functions")
        return self.evaluator.called_for_rows(call["funcexpr"], self)

    def _of_cte(self, entry: Node, column: int) -> Value:
        owner = self.above(entry.number("ctelevelsup"))
        (found,) = (cte for cte in owner.query.list("cteList") if cte["ctename"] == entry["ctename"])
        return Scope(self.evaluator, found["ctequery"], owner).output(column)

    def output(self, column: int) -> Value:
        """A column of what the query yields."""
        if self.query["setOperations"] is not None:
            numbers = [
                index
                for index, entry in enumerate(self.query["rtable"], 1)
                if entry["rtekind"] == _SUBQUERY and entry["eref"]["aliasname"].startswith("*SELECT*")
            ]
            return union([self.column(number, column) for number in numbers])
        is_select = self.query["commandType"] == _SELECT
        entries = self.query.list("targetList" if is_select else "returningList")
        (entry,) = (one for one in entries if one.number("resno") == column and one["resjunk"] == "false")
        return self.evaluator.value(entry["expr"], self)

    @property
    def always_yields(self) -> bool:
        """Whether there is a row whatever the tables hold: of aggregates of everything, and without tables."""
        query = self.query
        if query["groupClause"] or query["havingQual"] or query["setOperations"] or query["limitCount"]:
            return False
        return query["hasAggs"] == "true" or not (query["rtable"] or query["jointree"]["quals"])


def _type_of(entry: Node, column: int) -> int:
    kinds = entry.fields.get("coltypes")
    return int(kinds[column]) if kinds else 0  # the first is the letter of what follows


def _optional(tree: Node, *, below: bool = False) -> Iterator[int]:
    """The entries of a range table that an outer join may leave empty."""
    if tree.kind == "RANGETBLREF":
        if below:
            yield tree.number("rtindex")
    elif tree.kind == "FROMEXPR":
        for one in tree.list("fromlist"):
            yield from _optional(one, below=below)
    else:
        kind = tree["jointype"]
        yield from _optional(tree["larg"], below=below or kind in (_FULL, _RIGHT))
        yield from _optional(tree["rarg"], below=below or kind in (_FULL, _LEFT))
        if below:
            yield tree.number("rtindex")
