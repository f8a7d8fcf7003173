"""How commands answer: tables and sentences for people, the same as JSON with --json, progress on a terminal."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

#: Under which the context keeps whether --json was given.
JSON = "forgelet.json"
_LONGEST = 80
#: Told of so many more that were done.
Progress = Callable[[int], None]


def wants_json() -> bool:
    """Whether this command was given --json."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(JSON))


def table(
    columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, empty: str = "There are none."
) -> None:
    """Prints `rows` as a table of `columns`, or as a JSON list of objects, which then have all of their keys."""
    found = list(rows)
    if wants_json():
        _print_json(found)
    elif not found:
        click.echo(empty)
    else:
        heads = [column.replace("_", " ").upper() for column in columns]
        lines = [heads, *([_cell(row.get(column)) for column in columns] for row in found)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            click.echo("  ".join(cells).rstrip())


def answer(values: Mapping[str, Any], text: str) -> None:
    """Prints `text`, or `values` as a JSON object."""
    if wants_json():
        _print_json(values)
    else:
        click.echo(text)


def note(text: str) -> None:
    """Says something beside the answer: on standard error."""
    click.echo(text, err=True)


@contextmanager
def progress(label: str, length: int | None = None) -> Iterator[Progress]:
    """A bar on standard error, where that is a terminal; `length` is how many there are to do."""
    with click.progressbar(
        length=length or 0, label=label, file=sys.stderr, show_pos=True, hidden=not sys.stderr.isatty()
    ) as bar:
        yield bar.update


def _print_json(values: Any) -> None:
    click.echo(json.dumps(values, ensure_ascii=False, indent=2, default=_text))


def _text(value: Any) -> str:
    """Moments as in the API."""
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def _cell(value: Any) -> str:
    """One line without what would move a terminal's cursor."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    if hasattr(value, "strftime"):
        value = f"{value:%Y-%m-%d %H:%M:%S}"
    text = "".join(letter if letter.isprintable() else " " for letter in str(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
