"""The command `forgelet edge`, which runs a storage edge, and its commands for running edges."""

from typing import Any

import click

from forgelet.frame import Group, Lazy
from storage_edge.__main__ import main as process

_MODULE = "forgelet.commands.edges"
#: These are imported when they are used, because they need much of the API server, and the edge's process does not.
_COMMANDS = {
    "status": Lazy(
        f"{_MODULE}:status_command",
        "Show the state of each edge.",
    ),
    "list": Lazy(f"{_MODULE}:list_command", "List what each edge has stored."),
    "purge": Lazy(f"{_MODULE}:purge_command", "Remove stored objects from all edges at once."),
}


class _Edge(Group):
    """A group that runs the edge with its options, unless the first argument is no option."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        if args and not args[0].startswith("-"):
            return super().make_context(info_name, args, *rest, **extra)
        if "--help" in args:
            click.echo(f"Further commands: {info_name} {' | '.join(_COMMANDS)} --help\n")
        return process.make_context(info_name, args, *rest, **extra)


@click.group(cls=_Edge, lazy=_COMMANDS)
def edge() -> None:
    """Run a storage edge, or manage the running ones.

    The commands for running ones are `edge status`, `edge list` and `edge purge`.
    """
