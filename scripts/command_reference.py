"""Prints docs/commands.md, out of the commands themselves:

python -m scripts.command_reference >docs/commands.md
"""

import inspect
from collections.abc import Iterator, Sequence

import click

from forgelet.command_line import forgelet

HEAD = """# Commands

`python -m scripts.command_reference` generates this page from the commands' own help;
`tests/scripts/test_references.py` checks it. The package installs `forgelet`; in a checkout, use
`scripts/forgelet`.
"""
SHARED = """Every command except `api`, `edge` and `worker` also takes these options, before or after its name:

| Option | What it is |
|---|---|
"""
SERVERS = """Its options are its settings: see [settings](settings.md) or `forgelet {name} --help`.
"""
#: Whose options are the settings of a process.
_SERVERS = {"api", "edge", "worker"}


def reference() -> str:
    """The whole document."""
    context = click.Context(forgelet, info_name="forgelet")
    shared = [option for option in forgelet.get_params(context) if option.name in {"data_dir", "json"}]
    parts = [HEAD, _help(forgelet), SHARED + "\n".join(_rows(context, shared)) + "\n"]
    return "\n".join([*parts, *_sections(context, forgelet)])


def _sections(context: click.Context, group: click.Group) -> Iterator[str]:
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        assert command is not None
        below = click.Context(command, info_name=name, parent=context, **command.context_settings)
        level = "##" if context.parent is None else "###"
        yield f"{level} forgelet {below.command_path.partition(' ')[2]}\n"
        yield _help(command)
        if name in _SERVERS:
            yield SERVERS.format(name=name)
        elif isinstance(command, click.Group):
            yield from _sections(below, command)
        else:
            yield from _of(below, command)


def _of(context: click.Context, command: click.Command) -> Iterator[str]:
    pieces = [context.command_path, *command.collect_usage_pieces(context)]
    yield f"```text\n{' '.join(pieces)}\n```\n"
    options = [option for option in command.params if isinstance(option, click.Option)]
    if rows := list(_rows(context, options)):
        yield "| Option | What it is |\n|---|---|\n" + "\n".join(rows) + "\n"


def _rows(context: click.Context, parameters: Sequence[click.Parameter]) -> Iterator[str]:
    for option in parameters:
        if record := option.get_help_record(context):
            names, text = (text.replace("|", r"\|").strip() for text in record)
            yield f"| `{names}` | {text} |"


def _help(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "").replace("\f", "")
    assert text, command.name
    return f"{text}\n"


if __name__ == "__main__":
    print(reference(), end="")
