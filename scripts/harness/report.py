"""Tables whose rows are printed as they are measured."""

from collections.abc import Sequence
from typing import Any


class Table:
    """Columns of fixed width: the first from the left, the others from the right, and a last one as long as it is."""

    def __init__(self, *columns: tuple[str, int], last: str = "") -> None:
        self._widths = [width for _, width in columns]
        self.heading = self.row(*(title for title, _ in columns), last=last)

    def row(self, *cells: object, last: str = "") -> str:
        first, *others = zip(cells, self._widths, strict=True)
        text = f"{first[0]!s:{first[1]}}" + "".join(f"{cell!s:>{width}}" for cell, width in others)
        return f"{text}  {last}" if last else text


def missed_aims(found: dict[str, bool]) -> list[str]:
    """Return the names of the aims that were missed."""
    return [aim for aim, missed in found.items() if missed]


def with_misses(text: str, misses: Sequence[str]) -> str:
    """Return the end of a row, with the aims that it has missed."""
    return f"{text}  MISSED {', '.join(misses)}" if misses else text


def counted(counts: Any, most: int) -> str:
    """Return the most frequent keys of a Counter with their numbers, for instance `3 x 200, 1 x cut`."""
    return ", ".join(f"{count} x {what}" for what, count in counts.most_common(most) if count)
