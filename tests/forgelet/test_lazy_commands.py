"""Help, version, completion and mistakes come at once: the table of commands stands in for their modules."""

import os
import subprocess
import sys

import click
import pytest

from forgelet.command_line import COMMANDS, forgelet
from forgelet.frame import Group, Lazy
from tests.support.checkout import CHECKOUT

#: What takes long to import, and what such a call has no use for.
SERVER = {"api_server", "storage_edge", "aiohttp", "psycopg2", "psycopg", "procrastinate", "typed_settings"}
_PROGRAM = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from forgelet.__main__ import main
sys.argv[0] = "forgelet"
main()
"""


def imported(*arguments: str, **environment: str) -> tuple[str, set[str]]:
    """What the command prints, and the modules that it has imported."""
    kept = {
        name: text for name, text in os.environ.items() if not name.startswith(("FORGELET_", "_FORGELET"))
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, *arguments],
        env={**kept, "PYTHONPATH": str(CHECKOUT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    *errors, modules = done.stderr.splitlines()
    return done.stdout + "\n".join(errors), set(modules.split())


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--help"], "  migrate     Migrate the database to this version's schema, as its..."),
        (["--version"], "forgelet "),
        (["tokn"], "Error: No such command 'tokn'. Did you mean 'token'?"),
        (["--jsn"], "Error: No such option '--jsn'. Did you mean '--json'?"),
        (["up", "--help"], "--ready-file"),
        (["up", "--tesing"], "Error: No such option '--tesing'. Did you mean '--testing'?"),
        (["completion", "bash"], "_FORGELET_COMPLETE"),
        (["config", "--help"], "show"),
    ],
)
def test_what_needs_no_server_imports_none(arguments: list[str], printed: str) -> None:
    output, modules = imported(*arguments)
    assert printed in output
    assert modules & SERVER == set()
    logs_or_redacts = arguments[0] in COMMANDS.keys() - {"up"} or "Error" in printed
    assert ("structlog" in modules) == logs_or_redacts, "which takes as long as all else"


def test_completing_the_name_of_a_command_imports_no_server() -> None:
    output, modules = imported(_FORGELET_COMPLETE="bash_complete", COMP_WORDS="forgelet mi", COMP_CWORD="1")
    assert output.split() == ["plain,migrate", "plain,mirror"]
    assert modules & SERVER == set()


@pytest.mark.parametrize("command", ["token", "user", "runner", "mirror", "delivery"])
def test_help_of_commands_that_act_as_the_api_does_not_import_all_of_it(command: str) -> None:
    output, modules = imported(command, "--help")
    assert "--help" in output
    assert "api_server.app" not in modules


def test_the_sentences_of_the_table_are_those_of_the_commands() -> None:
    tables = {"": forgelet}
    compared = []
    while tables:
        where, group = tables.popitem()
        context = click.Context(group, info_name=where)
        for name in group.list_commands(context):
            _, command, _ = group.resolve_command(context, [name])
            assert command is not None
            listed = group.get_command(context, name)
            assert listed is not None
            assert listed.get_short_help_str(1000) == command.get_short_help_str(1000), f"{where} {name}"
            compared.append(name)
            if isinstance(command, Group):
                tables[f"{where} {name}"] = command
    assert {"up", "api", "purge", "create"} <= set(compared)


def test_a_table_of_lazy_commands_imports_what_is_called_only() -> None:
    group = Group(
        "group", lazy={"there": Lazy("forgelet.command_line:forgelet", "There."), "not": Lazy("x:y", "Not.")}
    )
    context = click.Context(group)
    assert group.list_commands(context) == ["not", "there"]
    assert group.resolve_command(context, ["there"])[1] is forgelet
    with pytest.raises(ModuleNotFoundError):
        group.resolve_command(context, ["not"])


def test_the_server_imports_what_its_background_work_needs_when_that_begins() -> None:
    """It may be done by another process (`--no-work`)."""
    output, modules = imported("api", "--help")
    assert "--no-work" in output
    assert "api_server.state.queue" in modules
    assert modules & {"procrastinate", "psycopg", "obstore", "yoyo"} == set()
