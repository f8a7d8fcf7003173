"""`forgelet edge`: the storage edge as a process of its own, and what operators ask of edges that run."""

from typing import Any

import click

from forgelet.frame import Group, Lazy
from storage_edge.__main__ import main as process

_MODULE = "forgelet.commands.outgoing"
#: Imported when they are used: they need much of the API server, which the process does not.
_COMMANDS = {
    "status": Lazy(
        f"{_MODULE}:status_command",
        "How each edge is: what it has served and stored, and whether it reaches its origin with the right token.",
    ),
    "list": Lazy(
        f"{_MODULE}:list_command", "What each edge has stored, how old it is, and how often it was used."
    ),
    "purge": Lazy(f"{_MODULE}:purge_command", "Has all edges forget what they have stored, at once."),
}


class _Edge(Group):
    """The process with its flags, unless the name of a command comes first."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        if args and args[0] in _COMMANDS:
            return super().make_context(info_name, args, *rest, **extra)
        if "--help" in args:
            click.echo(f"Commands beside the process itself: {info_name} {' | '.join(_COMMANDS)} --help\n")
        return process.make_context(info_name, args, *rest, **extra)


@click.group(cls=_Edge, lazy=_COMMANDS)
def edge() -> None:
    """Runs a storage edge; or asks those that run: `edge status`, `edge list`, `edge purge`."""
