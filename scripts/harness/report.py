"""Output of the tools: tables whose rows appear as they are measured, and parts of Markdown pages."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


class Table:
    """A table with columns of fixed width: the first is left-aligned, the others right-aligned, and the last is as
    long as its text."""

    def __init__(self, *columns: tuple[str, int], last: str = "") -> None:
        self._widths = [width for _, width in columns]
        self.heading = self.row(*(title for title, _ in columns), last=last)

    def row(self, *cells: object, last: str = "") -> str:
        first, *others = zip(cells, self._widths, strict=True)
        text = f"{first[0]!s:{first[1]}}" + "".join(f"{cell!s:>{width}}" for cell, width in others)
        return f"{text}  {last}" if last else text


def missed_aims(misses: dict[str, bool]) -> list[str]:
    """Return the names of the aims that were missed."""
    return [aim for aim, missed in misses.items() if missed]


def with_misses(text: str, misses: Sequence[str]) -> str:
    """Return the end of a row, with the missed aims."""
    return f"{text}  MISSED {', '.join(misses)}" if misses else text


def counted(counts: Any, limit: int) -> str:
    """Return the most frequent keys of a Counter with their numbers, for instance `3 x 200, 1 x cut`."""
    return ", ".join(f"{count} x {name}" for name, count in counts.most_common(limit) if count)


def markdown_table(*columns: str, rows: Iterable[Iterable[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    head, rule, *others = (f"| {' | '.join(map(str, line))} |" for line in lines)
    return "\n".join([head, rule.replace(" ", ""), *others])


_PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """Return a Markdown page with its parts between `<!-- generated: NAME -->` and `<!-- end -->` made anew; the text
    around them stays. Raise `KeyError` for a part without a function."""
    return _PART.sub(lambda part: f"{part[1]}\n{parts[part[2]]()}\n\n{part[3]}", page)
