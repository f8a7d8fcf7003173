"""The command `forgelet up`: its options, its progress, and what it says at the end."""

import contextlib
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from shlex import quote
from typing import NoReturn

import click

from forgelet.frame import Command
from forgelet.instance import Instance
from forgelet.local import demo_data, embedded_postgres
from forgelet.local.data_directory import DataDirectory
from forgelet.local.places import CHECKOUT, default_data_dir
from forgelet.local.processes import ENDING_SIGNALS, CannotStart
from forgelet.local.supervisor import Forgelet, Plan
from forgelet.local.variables import Addresses
from forgelet.output import answer, wants_json

_port = click.IntRange(1, 65535)
_TOKEN_SHOWN = "root-token-shown"
_A_TOKEN = re.compile(r"[\x21-\x7e]{8,255}")


@click.command(
    cls=Command,
    context_settings={"auto_envvar_prefix": "FORGELET", "show_default": True, "max_content_width": 110},
)
@click.option(
    "--api-port", type=_port, default=8080, show_envvar=True, help="Port of the API server on 127.0.0.1."
)
@click.option(
    "--edge-port", type=_port, default=8081, show_envvar=True, help="Port of the storage edge on 127.0.0.1."
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
@click.pass_obj
def up(
    instance: Instance,
    api_port: int,
    edge_port: int,
    root_token_file: Path | None,
    root_token: str | None,
    database_url: str | None,
    no_demo: bool,
    no_edge: bool,
) -> None:
    """Runs forgelet on this machine until Ctrl-C: PostgreSQL, API server and storage edge, with demo data.

    Everything is kept below --data-dir: database, repositories, secrets, logs. Its default is .forgelet in a checkout,
    and where it is installed ~/.local/share/forgelet (XDG_DATA_HOME counts), so that the next run finds it from any
    folder. To start again from nothing, stop it and delete that folder. Nothing is reachable from other machines.

    FORGELET_POSTGRES_VERSION is the PostgreSQL to begin with (such as 18) instead of the machine's newest; of
    scripts/up, FORGELET_PYTHON is the Python to run with (a command or path) instead of the first on PATH.
    """
    if root_token_file is not None:
        root_token = root_token_file.read_text(errors="replace").strip()
    if root_token is not None and not _A_TOKEN.fullmatch(root_token):
        given = f"What --root-token-file names ({root_token_file})" if root_token_file else "--root-token"
        raise CannotStart(f"{given} has to be 8 to 255 visible ASCII characters without spaces")
    if shutil.which("git") is None:
        raise CannotStart("The program git was not found; install it and try again")
    if database_url:
        embedded_postgres.check_external(database_url)
    data = DataDirectory(instance.named or default_data_dir())
    plan = Plan(data, Addresses(api_port, None if no_edge else edge_port), database_url)
    run(plan, root_token=root_token, with_demo=not no_demo)


def run(plan: Plan, *, root_token: str | None, with_demo: bool) -> NoReturn:
    """Runs `plan` until a signal or the end of one of its processes; ends this program either way."""
    forgelet = Forgelet(plan, tell)
    _obey_signals(forgelet)
    os.umask(0o077)
    begun = time.monotonic()
    with plan.data.opened():
        if root_token is not None:
            plan.data.write_secret("root-token", root_token)
            plan.data.remember(_TOKEN_SHOWN, "yes")
        with forgelet:
            tell(f"Ready after {time.monotonic() - begun:.1f} s.")
            if with_demo:
                demo_data.ensure(forgelet.api(), plan.data, CHECKOUT, tell)
            with contextlib.suppress(OSError):
                answer(places_of(plan), what_next(plan, with_demo=with_demo))
            forgelet.watch()
    sys.exit(0)


def places_of(plan: Plan) -> dict[str, str | None]:
    """What a program has to know of the service that runs."""
    return {
        "api_url": plan.api_url,
        "edge_url": plan.edge_url,
        "root_token_file": str(plan.data.secret_file("root-token")),
        "data_dir": str(plan.data.path),
    }


def what_next(plan: Plan, *, with_demo: bool) -> str:
    """The text at the end: addresses, the administrator's token the first time, three commands to paste."""
    token = f"in {plan.data.secret_file('root-token')}"
    if plan.data.recall(_TOKEN_SHOWN) is None:
        token = f"{plan.data.read_secret('root-token')}  (shown this once)"
        plan.data.remember(_TOKEN_SHOWN, "yes")
    lines = [
        "",
        f"  Pages          {plan.api_url}",
        f"  API server     {plan.api_url}/api/v4",
        f"  Storage edge   {plan.edge_url or 'not running (--no-edge)'}",
        f"  Administrator  root, token {token}",
        "                 replace it with --root-token-file FILE; to sign in, set a password:",
        "                 forgelet user password root",
        f"  Data and logs  {plan.data.path}",
        "",
        *commands_to_try(plan, with_demo=with_demo),
        "",
        "Ctrl-C stops everything.",
    ]
    return "\n".join(lines)


def commands_to_try(plan: Plan, *, with_demo: bool) -> list[str]:
    """Commands that work as they stand in any shell and folder."""
    api, raw = plan.api_url, plan.edge_url or plan.api_url
    if not with_demo:
        return [
            "Try:",
            f"  curl -H {_header(plan, 'root')} {api}/api/v4/user",
            f"  curl -H {_header(plan, 'root')} -d name=first -d visibility=public {api}/api/v4/projects",
        ]
    store = f"store --file={quote(str(plan.data.secret_file('git-credentials')))}"
    public, private = demo_data.PUBLIC.full_path, demo_data.PRIVATE.full_path
    return [
        f"Users {', '.join(demo_data.USERS)}: tokens in {plan.data.part('secrets')}. Try:",
        "",
        "  # clone, commit, push",
        f'  cd "$(mktemp -d)" && git clone -c credential.helper={quote(store)} \\',
        f"    {api.replace('://', '://alice@')}/{public}.git try && cd try &&",
        '    git switch -c "$(mktemp -u try-XXXXXX)" &&',
        "    git -c user.name=alice -c user.email=alice@example.org commit --allow-empty -m 'Try it' &&",
        "    git push -u origin HEAD",
        "",
        "  # a file of the public project; the second answer comes from the edge's cache, see Cache-Status",
        f"  curl -i {raw}/{public}/-/raw/{demo_data.BRANCH}/README.md",
        "",
        "  # a file of the private project: refused without a token, redirected to the edge with one",
        f"  curl -L -H {_header(plan, 'alice')} {api}/{private}/-/raw/{demo_data.BRANCH}/README.md",
        "",
        "  # the API",
        f"  curl -H {_header(plan, 'alice')} {api}/api/v4/projects",
        f"  curl -H {_header(plan, 'alice')} {api}/api/v4/projects/{private.replace('/', '%2F')}/jobs",
    ]


def _header(plan: Plan, username: str) -> str:
    file = plan.data.secret_file(demo_data.token_name(username))
    return f'"PRIVATE-TOKEN: $(cat {quote(str(file))})"'


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
