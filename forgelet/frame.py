"""The common parts of all commands: options, output, and errors.

--data-dir and --json may stand before or after the names of commands. Output is tables and sentences for people, the
same content as JSON with --json, and progress on a terminal.

Exit status 0: done, without problems. 1: a problem was found, or something failed. 2: invalid input or an unusable
service; nothing was done.
"""

import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from common import config_errors
from common.config_errors import ConfigError, as_typed
from forgelet import import_quickly
from forgelet.instance import Instance

#: The key in the context's `meta` that says whether --json was given.
JSON = "forgelet.json"
_LONGEST = 80
#: A function that is called with the number of items that were completed since the last call.
Progress = Callable[[int], None]


def wants_json() -> bool:
    """Return whether this command was given --json."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(JSON))


def table(
    columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, empty: str = "There are none."
) -> None:
    """Print `rows` as a table of `columns`, or as a JSON list of objects with all their keys."""
    all_rows = list(rows)
    if wants_json():
        _print_json(all_rows)
    elif not all_rows:
        click.echo(empty)
    else:
        heads = [column.replace("_", " ").upper() for column in columns]
        lines = [heads, *([_cell(row.get(column)) for column in columns] for row in all_rows)]
        widths = [max(len(line[position]) for line in lines) for position in range(len(columns))]
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            click.echo("  ".join(cells).rstrip())


def answer(values: Mapping[str, Any], text: str) -> None:
    """Print `text`, or `values` as a JSON object."""
    if wants_json():
        _print_json(values)
    else:
        click.echo(_as_typed(text))


def note(text: str) -> None:
    """Print a remark on standard error, apart from the answer."""
    click.echo(_as_typed(text), err=True)


def _as_typed(text: str) -> str:
    """Return `text` with commands for the service that this one works on."""
    return as_typed(text, _folder())


def _folder() -> Path | None:
    instance = click.get_current_context().find_object(Instance)
    return instance.named if instance else None


@contextmanager
def progress(label: str, length: int | None = None) -> Iterator[Progress]:
    """Show a progress bar on standard error if that is a terminal. `length` is the total."""
    with click.progressbar(
        length=length or 0, label=label, file=sys.stderr, show_pos=True, hidden=not sys.stderr.isatty()
    ) as bar:
        yield bar.update


def _print_json(values: Any) -> None:
    click.echo(json.dumps(values, ensure_ascii=False, indent=2, default=_text))


def _text(value: Any) -> str:
    """Return a time as in the API, and everything else as a string."""
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def _cell(value: Any) -> str:
    """Return the value as one line of printable characters, shortened if it is long."""
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


def _data_dir(context: click.Context, _parameter: click.Parameter, folder: str | None) -> None:
    if folder == "":
        raise ConfigError("--data-dir is empty: name a folder, or leave it out")
    instance = context.find_root().ensure_object(Instance)
    of_variable = context.get_parameter_source("data_dir") is ParameterSource.ENVIRONMENT
    # An option before the command's name takes precedence over the variable.
    if folder is not None and not (of_variable and context.parent):
        instance.named = Path(folder)


def _json(context: click.Context, _parameter: click.Parameter, as_json: bool) -> None:
    context.meta[JSON] = as_json or context.meta.get(JSON, False)


#: The number of lines of a list.
limit_option = click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1), help="Maximum number of lines."
)

#: What the option --data-dir is in all commands but its help.
DATA_DIR: Mapping[str, Any] = {
    "metavar": "FOLDER",
    "envvar": "FORGELET_DATA_DIR",
    "show_envvar": True,
    "expose_value": False,
    "callback": _data_dir,
}


def _shared() -> list[click.Parameter]:
    return [
        click.Option(
            ["--data-dir"],
            **DATA_DIR,
            help="Folder of the `forgelet up` to use; default is the running one.",
        ),
        click.Option(
            ["--json"], is_flag=True, expose_value=False, callback=_json, help="Print JSON, for programs."
        ),
    ]


class _Shared(click.Command):
    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own parameters and the common ones that it does not define itself."""
        own_parameters = super().get_params(ctx)
        own_options = {name for parameter in own_parameters for name in parameter.opts}
        return [
            *own_parameters[:-1],
            *(parameter for parameter in self._shared if not own_options & set(parameter.opts)),
            *own_parameters[-1:],
        ]

    @functools.cached_property
    def _shared(self) -> list[click.Parameter]:
        return _shared()


class Command(_Shared):
    """A command that gets an `Instance` by `@click.pass_obj`, and reports expected errors in one sentence."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raise `ConfigError` also for errors of the system and of PostgreSQL."""
        try:
            return self._invoked(ctx)
        except ConfigError as problem:
            problem.folder = _folder()
            raise

    def _invoked(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except OSError as problem:
            raise ConfigError(": ".join(filter(None, (problem.strerror, problem.filename)))) from None
        except Exception:
            # This import takes longer than many commands.
            from api_server.state.migrate import unsuitable_database

            with unsuitable_database():
                raise


class Lazy(NamedTuple):
    """A command that is imported when it is used: its `target` (`module:attribute`) and the first sentence of its help,
    which lists of commands show."""

    target: str
    summary: str


class _NotImported(click.Command):
    """A placeholder for a lazy command in help, completion and suggestions."""

    def __init__(self, name: str, lazy: Lazy) -> None:
        super().__init__(name, help=lazy.summary)
        self._module, _, self._attribute = lazy.target.partition(":")

    def imported(self) -> click.Command:
        command: click.Command = getattr(import_quickly(self._module), self._attribute)
        return command


class Group(_Shared, config_errors.Group):
    """A group of commands. Those in `lazy` are imported when one of them is called."""

    command_class = Command
    group_class = type

    def __init__(self, *arguments: Any, lazy: Mapping[str, Lazy] | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, command in (lazy or {}).items():
            self.add_command(_NotImported(name, command))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command's name, the command after importing it, and the remaining arguments."""
        name, command, remaining = super().resolve_command(ctx, args)
        return name, command.imported() if isinstance(command, _NotImported) else command, remaining
