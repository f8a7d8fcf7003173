"""The command `forgelet up`: its options, and how it begins and ends."""

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import attrs
import click

from forgelet.frame import Command
from forgelet.instance import Instance
from forgelet.local import external_postgres, given
from forgelet.local.data_directory import TOKEN_SHOWN, DataDirectory
from forgelet.local.memory import passing_data
from forgelet.local.places import CHECKOUT, default_data_dir
from forgelet.local.processes import ENDING_SIGNALS, START_TIMEOUT, CannotStart
from forgelet.local.ready_file import ReadyFile
from forgelet.local.runner import playing, rules_of, runner_option
from forgelet.local.supervisor import Forgelet, Plan, never
from forgelet.local.variables import API, API_PORT, EDGE_PORT, HOST, Addresses
from forgelet.output import answer, wants_json

if TYPE_CHECKING:
    from forgelet.runner.rules import Rules

_port = click.IntRange(0, 65535)


@click.command(
    cls=Command,
    context_settings={"auto_envvar_prefix": "FORGELET", "show_default": True, "max_content_width": 110},
)
@click.option(
    "--api-port",
    type=_port,
    show_envvar=True,
    help="Port of the API server; 0 is a free one.",
    show_default=f"{API_PORT}; with --testing 0",
)
@click.option(
    "--edge-port",
    type=_port,
    show_envvar=True,
    help="Port of the storage edge; 0 is a free one.",
    show_default=f"{EDGE_PORT}; with --testing 0",
)
@click.option(
    "--host",
    type=given.address,
    default=HOST,
    metavar="ADDRESS",
    show_envvar=True,
    help="IPv4 address on which both listen; 0.0.0.0, all of this machine's, lets other machines in.",
)
@click.option(
    "--external-host",
    type=given.name,
    metavar="NAME",
    show_envvar=True,
    help="Name or address by which others reach this machine, for the URLs in answers.",
    show_default="--host, but 127.0.0.1 for 0.0.0.0",
)
@click.option(
    "--root-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    show_envvar=True,
    help="File with the personal access token of the administrator `root`, from now on; without it one is drawn"
    " on the first run and kept.",
)
@click.option(
    "--root-token",
    show_envvar=True,
    help="That token itself: by the variable, since an option shows in process lists.",
)
@click.option(
    "--database-url",
    show_envvar=True,
    help="A PostgreSQL from version 15 on to use instead of our own: postgresql://user:password@host/database."
    " The variable keeps the password out of process lists.",
)
@click.option("--no-demo", is_flag=True, show_envvar=True, help="Make no demo users, groups and projects.")
@click.option("--no-edge", is_flag=True, show_envvar=True, help="Run without the storage edge.")
@click.option(
    "--gitlab-version",
    type=given.gitlab_version,
    metavar="VERSION",
    show_envvar=True,
    help="The GitLab that /version, /metadata and CI_SERVER_VERSION name, such as 17.11.",
)
@click.option(
    "--testing",
    is_flag=True,
    show_envvar=True,
    help="A server for tests: free ports, no demo data, everything in memory and gone at the end, and it can be reset,"
    " moved in time and made to fail by whoever reaches it.",
)
@runner_option
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    show_envvar=True,
    help="File that is there, with addresses and token as JSON, while everything can be used.",
)
@click.option(
    "--start-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=START_TIMEOUT,
    metavar="SECONDS",
    show_envvar=True,
    help="Give up where not everything is ready by then. A line each ten seconds says what is waited for.",
)
@click.option(
    "--until-eof",
    is_flag=True,
    show_envvar=True,
    help="End when standard input ends too: with the program that holds the other end of the pipe.",
)
@click.pass_obj
def up(
    instance: Instance,
    *,
    api_port: int | None,
    edge_port: int | None,
    host: str,
    external_host: str | None,
    root_token_file: Path | None,
    root_token: str | None,
    database_url: str | None,
    no_demo: bool,
    no_edge: bool,
    gitlab_version: str | None,
    testing: bool,
    runner: str | None,
    ready_file: Path | None,
    start_timeout: float,
    until_eof: bool,
) -> None:
    """Runs forgelet on this machine until Ctrl-C: PostgreSQL, API server and storage edge, with demo data.

    Everything is kept below --data-dir: database, repositories, secrets, logs. Its default is .forgelet in a checkout,
    and where it is installed ~/.local/share/forgelet (XDG_DATA_HOME counts), so that the next run finds it from any
    folder. To start again from nothing, stop it and delete that folder. Without --host no other machine reaches it.

    With --testing it is a server for tests, of which several may run beside each other: --ready-file says where it is,
    and a --data-dir, which has to be empty, keeps what it leaves.

    FORGELET_POSTGRES_VERSION is the PostgreSQL to begin with (such as 18) instead of the machine's newest; of
    scripts/up, FORGELET_PYTHON is the Python to run with (a command or path) instead of the first on PATH.
    """
    token = given.root_token(root_token, root_token_file)
    if shutil.which("git") is None:
        raise CannotStart("The program git was not found; install it and try again")
    named = given.folder_for_tests(instance, database_url) if testing else instance.named
    if database_url:
        external_postgres.check_external(database_url)
    addresses = _addresses(api_port, edge_port, no_edge=no_edge, testing=testing)
    addresses = attrs.evolve(addresses, host=host, external_host=external_host)
    is_over = _until_eof() if until_eof else never
    chosen = {} if gitlab_version is None else {f"{API.prefix}GITLAB_VERSION": gitlab_version}
    with _data(named, passing=testing) as data:
        run(
            Plan(data, addresses, database_url, testing, chosen, start_timeout),
            root_token=token,
            with_demo=not (no_demo or testing),
            rules=rules_of(runner),
            ready_file=ReadyFile(ready_file) if ready_file else None,
            is_over=is_over,
        )


def _addresses(api_port: int | None, edge_port: int | None, *, no_edge: bool, testing: bool) -> Addresses:
    usual = Addresses(0, 0) if testing else Addresses()
    edge_port = usual.edge_port if edge_port is None else edge_port
    return Addresses(usual.api_port if api_port is None else api_port, None if no_edge else edge_port)


def _data(named: Path | None, *, passing: bool) -> contextlib.AbstractContextManager[DataDirectory]:
    if passing and named is None:
        return passing_data()
    return contextlib.nullcontext(DataDirectory(named or default_data_dir()))


def run(
    plan: Plan,
    *,
    root_token: str | None,
    with_demo: bool,
    rules: "Rules | None",
    ready_file: ReadyFile | None,
    is_over: Callable[[float], bool],
) -> NoReturn:
    """Runs `plan` until a signal, the end of one of its processes, or `is_over`; ends this program either way."""
    forgelet = Forgelet(plan, tell, is_over)
    _obey_signals(forgelet)
    os.umask(0o077)
    if plan.database_url is None:
        external_postgres.forget_variables()
    begun = time.monotonic()
    with plan.data.opened():
        if ready_file:
            ready_file.clear()
        if root_token is not None:
            plan.data.write_secret("root-token", root_token)
            plan.data.remember(TOKEN_SHOWN, "yes")
        with forgelet:
            from forgelet.local import demo_data, next_steps  # by now nobody waits for their import

            plan = forgelet.plan  # its ports are known now
            tell(f"Ready after {time.monotonic() - begun:.1f} s.")
            if with_demo:
                demo_data.ensure(forgelet.api(), plan.data, CHECKOUT, tell)
            with playing(forgelet, rules) if rules else contextlib.nullcontext():
                if plan.testing:
                    forgelet.begin_here()
                with (
                    ready_file.written(next_steps.facts_of(plan)) if ready_file else contextlib.nullcontext()
                ):
                    with contextlib.suppress(OSError):
                        answer(next_steps.places_of(plan), next_steps.what_next(plan, with_demo=with_demo))
                    forgelet.watch()
    sys.exit(0)


def tell(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(text, flush=True, file=sys.stderr if wants_json() else sys.stdout)


def _obey_signals(forgelet: Forgelet) -> None:
    """Ctrl-C and SIGTERM end everything, the second of them at once. SIGHUP is for the servers, but where it says that
    the terminal is gone."""
    at_a_terminal = sys.stdout.isatty()

    def hurry(_number: int, _frame: object) -> None:
        forgelet.hurry()

    def end(_number: int, _frame: object) -> NoReturn:
        for number in ENDING_SIGNALS:
            signal.signal(number, hurry)
        raise SystemExit(0)

    def hang_up(number: int, frame: object) -> None:
        if at_a_terminal and not os.isatty(1):
            signal.signal(number, signal.SIG_IGN)
            end(number, frame)
        forgelet.reload()

    for number in ENDING_SIGNALS:
        signal.signal(number, end)
    signal.signal(signal.SIGHUP, hang_up)


def _until_eof() -> Callable[[float], bool]:
    if _ends_within(0):
        raise CannotStart(
            "Standard input has ended already; --until-eof needs a pipe that somebody holds open"
        )
    return _ends_within


def _ends_within(seconds: float) -> bool:
    """Whether standard input ends; what comes from there before is of no interest."""
    try:
        readable, _, _ = select.select([0], [], [], seconds)
        return bool(readable) and not os.read(0, 65536)
    except OSError:  # it is closed
        return True
