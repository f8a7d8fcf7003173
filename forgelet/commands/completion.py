"""Completion of commands and options by shells."""

import click
from click.shell_completion import get_completion_class

from forgelet.frame import Command
from forgelet.output import answer


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Prints what makes SHELL complete `forgelet` on the Tab key.

    For this session: eval "$(forgelet completion bash)"; fish: forgelet completion fish | source. For good: put that
    line into ~/.bashrc or ~/.zshrc; fish: into ~/.config/fish/config.fish.
    """
    wanted = get_completion_class(shell)
    assert wanted is not None
    script = wanted(context.find_root().command, {}, "forgelet", "_FORGELET_COMPLETE").source()
    answer({"shell": shell, "script": script}, script)
