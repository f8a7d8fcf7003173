"""Commands: their output and their options, and that help, version and errors are quick."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import attrs
import click
import pytest
from click.testing import CliRunner

from api_server.settings import Settings as ApiSettings
from forgelet.command_line import COMMANDS, forgelet
from forgelet.frame import Group, Lazy
from forgelet.local.embedded_postgres import autocommitting
from storage_edge.settings import Settings as EdgeSettings
from tests.api_server.operations.scene import PURGE_TOKEN, SECRET, Scene, failing_scene
from tests.forgelet.commands.running import answer, mistake, of_server
from tests.forgelet.test_doctor import environment
from tests.support.checkout import CHECKOUT
from tests.support.forge import running_forge
from tests.support.preloaded import Ended, Programs, preloaded

URL = "postgresql://me:hunter2@127.0.0.1:1/none"


def test_every_setting_is_shown_with_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hunter2hunter2\n")
    settings = tmp_path / "settings.toml"
    settings.write_text('[api_server]\nroot_token_file = "token"\ntier = "free"\n[edge]\nport = 9\n')
    monkeypatch.setenv("FORGELET_EDGE_STORAGE_TOKEN", "hunter2")
    environment = {"FORGELET_SETTINGS": str(settings)}
    rows = answer(of_server(URL, tmp_path, "config", "show", "--json", **environment))
    assert "hunter2" not in str(rows)
    shown = {(row["process"], row["setting"]): (row["value"], row["source"]) for row in rows}
    named = {("api", field.name) for field in attrs.fields(ApiSettings)}
    assert shown.keys() == named | {("edge", field.name) for field in attrs.fields(EdgeSettings)}
    assert shown["api", "database_url"] == (
        "postgresql://me:***@127.0.0.1:1/none",
        "FORGELET_API_DATABASE_URL",
    )
    assert shown["api", "tier"] == ("free", f"tier in section [api_server] of {settings}")
    assert shown["api", "root_token"] == ("***", "the file of root_token_file")
    assert shown["api", "port"] == (8080, "default")
    assert shown["edge", "port"] == (9, f"port in section [edge] of {settings}")
    assert shown["edge", "storage_token"] == ("***", "FORGELET_EDGE_STORAGE_TOKEN")
    assert shown["edge", "purge_token"] == ("", "default")


def test_what_has_its_default_can_be_left_out(tmp_path: Path) -> None:
    rows = answer(of_server(URL, tmp_path, "config", "show", "--changed", "--json"))
    assert [(row["process"], row["setting"], row["value"]) for row in rows] == [
        ("api", "database_url", "postgresql://me:***@127.0.0.1:1/none"),
        ("api", "data_dir", str(tmp_path)),
    ]


def test_people_get_a_table(tmp_path: Path) -> None:
    lines = of_server(URL, tmp_path, "config", "show", "--changed").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["PROCESS", "SETTING"],
        ["api", "database_url"],
        ["api", "data_dir"],
    ]


def test_what_is_to_be_done_is_said_first_and_then_done_once(
    postgres_url: str, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    with autocommitting(postgres_url) as owner:
        owner.execute("CREATE DATABASE still_empty")
    url = urlunsplit(urlsplit(postgres_url)._replace(path="/still_empty"))
    for command in (["user", "block", "root"], ["task", "list"], ["audit", "verify"]):
        refused = mistake(of_server(url, tmp_path, *command))
        assert refused.startswith(
            "The database is not of this version's schema: run `scripts/forgelet migrate`"
        )
    checked = of_server(url, tmp_path, "migrate", "--check", "--json")
    assert checked.exit_code == 1
    assert '"apply 0001_accounts' in checked.stdout
    done = of_server(url, tmp_path, "migrate")
    assert done.exit_code == 0
    assert done.stderr.splitlines()[0] == "make the tables of the queue ..."
    assert done.stdout.endswith(" steps are done.\n")
    assert answer(of_server(url, tmp_path, "migrate", "--check", "--json")) == {"to_do": []}
    assert of_server(url, tmp_path, "migrate").stdout == "The database already has this version's schema.\n"


PROGRAM = "import json, sys, forgelet.commands.edge; print(json.dumps([n for n in sys.modules if 'api_server' in n]))"


def test_an_edge_has_nothing_of_the_api_server() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], cwd=CHECKOUT, capture_output=True, check=True)
    assert json.loads(said.stdout) == []


#: Modules that take long to import, and that such a call does not need.
SERVER = {"api_server", "storage_edge", "aiohttp", "psycopg2", "psycopg", "procrastinate", "typed_settings"}
_PROGRAM = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from forgelet.__main__ import main
sys.argv[0] = "forgelet"
main()
"""


def imported(*arguments: str, **environment: str) -> tuple[str, set[str]]:
    """Return the command's output, and the modules that it has imported."""
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
        (["--help"], "  migrate       Migrate the database to this version's schema.\n"),
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
            # Lists of commands on a terminal of 80 columns cut off what is longer.
            assert not listed.get_short_help_str(60).endswith("..."), f"{where} {name}"
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
    """Another process may do it (`--no-work`)."""
    output, modules = imported("api", "--help")
    assert "--no-work" in output
    assert "api_server.state.queue" in modules
    assert modules & {"procrastinate", "psycopg", "obstore", "yoyo"} == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed_and_with_json_the_same(shell: str) -> None:
    shown: Any = CliRunner().invoke(forgelet, ["completion", shell])
    assert "_FORGELET_COMPLETE" in shown.stdout
    as_json = json.loads(CliRunner().invoke(forgelet, ["completion", shell, "--json"]).stdout)
    assert as_json == {"shell": shell, "script": shown.stdout.removesuffix("\n")}
    if program := shutil.which(shell):
        subprocess.run([program, "-n", "/dev/stdin"], input=shown.stdout, text=True, check=True)


def test_bash_completes_commands_that_are_imported_when_they_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "forgelet").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m forgelet "$@"\n')
    (tmp_path / "forgelet").chmod(0o755)
    script = CliRunner().invoke(forgelet, ["completion", "bash"]).stdout
    asked = (
        "COMP_WORDS=(forgelet user cre); COMP_CWORD=2; _forgelet_completion forgelet; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "create\n", done.stderr


PARTS = ("outgoing", "database", "edge")


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with preloaded("forgelet.command_line", *(f"forgelet.commands.{part}" for part in PARTS)) as programs:
        yield programs


@pytest.fixture(scope="module")
async def scene(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    """A scene in which everything fails."""
    folder = tmp_path_factory.mktemp("failing")

    def forge(**settings: Any) -> Any:
        return running_forge(new_database(), settings.pop("data_dir"), **settings)

    async with failing_scene(forge, folder) as scene:
        await scene.break_all()
        await scene.queue_unknown(3)
        async with asyncio.timeout(30):
            while not {"mirror", "delivery", "task"} <= {one.kind for one in await scene.failing()}:
                await asyncio.sleep(0.05)
        yield scene


@pytest.fixture
def run(scene: Scene, programs: Programs, tmp_path: Path) -> Callable[..., Any]:
    """A function that runs a command in a process of its own; its output never contains secrets."""

    async def run(*arguments: str) -> Ended:
        given = {"HOME": str(tmp_path), **environment(scene)}
        ended = await asyncio.to_thread(programs.run, "forgelet", arguments, given, folder=tmp_path)
        assert SECRET not in ended.output + ended.errors
        assert PURGE_TOKEN not in ended.output + ended.errors
        return ended

    return run


async def test_failing_mirrors_are_listed_and_run_again(scene: Scene, run: Callable[..., Any]) -> None:
    listed = json.loads((await run("mirror", "list", "--failing", "--json")).output)
    assert [one["last_error"] for one in listed] != []
    assert "Failed to connect" in listed[0]["last_error"]
    shown = (await run("mirror", "list")).output
    assert shown.splitlines()[0].split()[:3] == ["ID", "PROJECT", "URL"]
    assert listed[0]["project"] in shown
    ended = await run("mirror", "sync", str(listed[0]["id"]), "999999")
    assert ended.status == 1
    assert "runs soon" in ended.output
    assert "nothing has this ID" in ended.output


async def test_failing_deliveries_are_listed_and_sent_again(scene: Scene, run: Callable[..., Any]) -> None:
    listed = json.loads((await run("delivery", "list", "--failing", "--json")).output)
    assert listed[0]["check"] == "QA"
    assert "Connection refused" in listed[0]["problem"]
    number = listed[0]["id"]
    ended = await run("delivery", "retry", str(number))
    assert (ended.status, ended.errors) == (0, "")
    events = await scene.forge.database.rows(
        "SELECT details FROM audit_events WHERE event_type = 'status_check_delivery_redelivered'"
    )
    assert [json.loads(event.details)["delivery_id"] for event in events] == [str(number)]


async def test_failed_tasks_are_listed_tried_again_and_removed(scene: Scene, run: Callable[..., Any]) -> None:
    async with asyncio.timeout(30):
        while True:
            listed = json.loads((await run("task", "list", "--failing", "--json")).output)
            failed = [one for one in listed if one["name"] == "of_another_version"]
            if len(failed) == 3 and all(one["reason"] for one in failed):
                break
    assert "TaskNotFound" in failed[0]["reason"]
    ended = await run("task", "cancel", str(failed[0]["id"]))
    assert (ended.status, ended.errors) == (0, "")
    ended = await run("task", "cancel", str(failed[0]["id"]))
    assert ended.status == 1
    assert "it has been done, or was removed" in ended.output
    ended = await run("task", "retry", "--failed", "--name", "of_another_version", "--json")
    assert {one["id"] for one in json.loads(ended.output)} == {one["id"] for one in failed[1:]}
    ended = await run("task", "retry")
    assert (ended.status, ended.output) == (2, "")
    assert (
        ended.errors
        == "Error: Give the IDs of tasks, or --failed for all failed ones (of one name with --name)\n"
    )


async def test_edges_that_do_not_answer_are_told_of(scene: Scene, run: Callable[..., Any]) -> None:
    for arguments in (("status",), ("list",), ("purge", "--everything")):
        ended = await run("edge", *arguments)
        assert ended.status == 1
        assert "The edge cannot be reached: " in ended.output + ended.errors
    assert (await run("edge", "purge")).errors.startswith("Error: Say what to purge")
    ended = await run("edge", "purge", "--project", "none/there")
    assert (ended.status, ended.output) == (2, "")
    assert "There is no project none/there" in ended.errors


async def test_edge_is_the_process_too(run: Callable[..., Any]) -> None:
    assert "--origin-flavour" in (await run("edge", "--help")).output
    wrong = await run("edge", "stauts")
    assert (wrong.status, wrong.errors) == (2, "Error: No such command 'stauts'. Did you mean 'status'?\n")
    ended = await run("edge", "--port", "99999")
    assert (ended.status, ended.errors) == (
        2,
        "Error: --port has to be a whole number from 0 to 65535\n",
    )
