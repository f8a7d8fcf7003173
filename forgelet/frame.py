"""What all commands have in common: --data-dir and --json before or after their names, and how they fail.

Exit status 0: done, nothing is wrong. 1: something was found to be wrong, or failed. 2: a mistake in what was given,
or a service that cannot be used; nothing was done.
"""

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


class Group(_Shared, mistakes.Group):
    """Commands; `lazy` ones, as `module:attribute` by their names, are imported when they are wanted."""

    command_class = Command
    group_class = type

    def __init__(self, *arguments: Any, lazy: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in alphabetical order."""
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported now, or None."""
        if cmd_name in self._lazy:
            module, _, attribute = self._lazy[cmd_name].partition(":")
            found: click.Command = getattr(importlib.import_module(module), attribute)
            return found
        return super().get_command(ctx, cmd_name)
