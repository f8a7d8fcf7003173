"""How a command is given a password or a passphrase: at a prompt, through standard input, or as an option."""

import sys

import click

from common.mistakes import Mistake

OPTION = click.option(
    "--password",
    metavar="TEXT",
    help="The password itself; without it, it is asked for at a terminal, else it is the first line of standard input,"
    " which shows it to nobody who lists processes.",
)


def read(given: str | None) -> str:
    """What was `given`, or what a person types twice, or the first line of standard input. Raises `Mistake`."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        typed: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return typed
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise Mistake("No password was given: type it, send it through standard input, or use --password")
    return line
