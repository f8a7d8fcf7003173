"""What all commands have in common: --data-dir and --json before or after their names, and how they fail.

Exit status 0: done, nothing is wrong. 1: something was found to be wrong, or failed. 2: a mistake in what was given,
or a service that cannot be used; nothing was done.
"""

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from common import mistakes
from common.mistakes import Mistake
from forgelet.instance import Instance
from forgelet.output import JSON


def _data_dir(context: click.Context, _parameter: click.Parameter, folder: str | None) -> None:
    if folder == "":
        raise Mistake("--data-dir is empty: name a folder, or leave it out")
    instance = context.find_root().ensure_object(Instance)
    of_variable = context.get_parameter_source("data_dir") is ParameterSource.ENVIRONMENT
    if folder is not None and not (of_variable and context.parent):  # the variable counts less than any flag
        instance.named = Path(folder)


def _json(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    context.meta[JSON] = wanted or context.meta.get(JSON, False)


def _shared() -> list[click.Parameter]:
    return [
        click.Option(
            ["--data-dir"],
            metavar="FOLDER",
            envvar="FORGELET_DATA_DIR",
            show_envvar=True,
            expose_value=False,
            callback=_data_dir,
            help="Folder of the `forgelet up` that is meant; default is the one that runs.",
        ),
        click.Option(
            ["--json"], is_flag=True, expose_value=False, callback=_json, help="Print JSON, for programs."
        ),
    ]


class _Shared(click.Command):
    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own parameters, and the shared ones that it does not have itself."""
        own = super().get_params(ctx)
        taken = {name for parameter in own for name in parameter.opts}
        return [*own[:-1], *(one for one in self._shared if not taken & set(one.opts)), *own[-1:]]

    @functools.cached_property
    def _shared(self) -> list[click.Parameter]:
        return _shared()


class Command(_Shared):
    """A command that takes `@click.pass_obj` as an `Instance`. What it raises is one sentence where that is enough."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs it. Raises `Mistake` also where the system or PostgreSQL refuses."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except OSError as problem:
            raise Mistake(": ".join(filter(None, (problem.strerror, problem.filename)))) from None
        except Exception:
            from api_server.state.migrate import unsuitable_database  # takes longer than many commands

            with unsuitable_database():
                raise


class Lazy(NamedTuple):
    """A command that is imported when it is used: where it is (`module:attribute`), and the first sentence of its help,
    by which lists of commands show it without importing it."""

    place: str
    summary: str


class _NotImported(click.Command):
    """Stands for a lazy command in lists of commands: help, completion, suggestions."""

    def __init__(self, name: str, lazy: Lazy) -> None:
        super().__init__(name, help=lazy.summary)
        self._module, _, self._attribute = lazy.place.partition(":")

    def imported(self) -> click.Command:
        command: click.Command = getattr(importlib.import_module(self._module), self._attribute)
        return command


class Group(_Shared, mistakes.Group):
    """A group of commands; the `lazy` ones, by their names, are imported when one of them is called."""

    command_class = Command
    group_class = type

    def __init__(self, *arguments: Any, lazy: Mapping[str, Lazy] | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, command in (lazy or {}).items():
            self.add_command(_NotImported(name, command))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name, the command, imported now, and the arguments that are left for it."""
        name, command, left = super().resolve_command(ctx, args)
        return name, command.imported() if isinstance(command, _NotImported) else command, left
