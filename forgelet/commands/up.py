"""The command `forgelet up`: its options, its start and end, and what it prints when everything runs."""

import contextlib
import datetime
import functools
import ipaddress
import json
import os
import re
import secrets
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NoReturn

import attrs
import click
from click.core import ParameterSource

from common.config_errors import own_command, writable
from forgelet.frame import DATA_DIR, Command, answer, wants_json
from forgelet.instance import Instance
from forgelet.local import embedded_postgres
from forgelet.local.data_directory import CHECKOUT, TOKEN_SHOWN, DataDirectory, default_data_dir
from forgelet.local.processes import ENDING_SIGNALS, START_TIMEOUT, CannotStart
from forgelet.local.supervisor import Forgelet, Plan, never
from forgelet.local.throwaway_data import passing_data
from forgelet.local.variables import API, API_PORT, EDGE_PORT, HOST, Addresses

_A_NAME = re.compile(r"(?!-)[A-Za-z0-9._-]{1,253}")
_A_TOKEN = re.compile(r"[\x21-\x7e]{8,255}")


def listen_address(text: str) -> str:
    """Return the checked value of `--host`. Raise `ConfigError`, as the other checks do."""
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise CannotStart("--host has to be an IPv4 address, such as 0.0.0.0") from None


def external_name(text: str) -> str:
    """Return the checked value of `--external-host`."""
    if not _A_NAME.fullmatch(text):
        raise CannotStart(
            "--external-host has to be the name or the IPv4 address of a machine, without a port"
        )
    return text


def checked_gitlab_version(text: str) -> str:
    """Return the checked value of `--gitlab-version`."""
    from api_server.settings import GITLAB_VERSION  # imported here, so that a usual start is faster

    if not re.fullmatch(GITLAB_VERSION, text):
        raise CannotStart("--gitlab-version has to be a version such as 17.11 or 17.11.4-ee")
    return text


def checked_root_token(token: str | None, file: Path | None) -> str | None:
    """Return the checked token of `--root-token` or `--root-token-file`, or None without either."""
    if file is not None:
        token = file.read_text(errors="replace").strip()
    if token is not None and not _A_TOKEN.fullmatch(token):
        origin = f"What --root-token-file names ({file})" if file else "--root-token"
        raise CannotStart(f"{origin} has to be 8 to 255 visible ASCII characters without spaces")
    return token


def folder_for_tests(instance: Instance, database_url: str | None) -> Path | None:
    """Return the folder of `--data-dir` for a server for tests, which must be empty, or None. FORGELET_DATA_DIR is
    ignored, because it names the folder of another service."""
    if database_url:
        raise CannotStart("--testing starts a throwaway PostgreSQL of its own: leave out --database-url")
    folder = instance.named if _is_data_dir_given() else None
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CannotStart(
            f"--testing starts with empty data, and there is something in {folder}: name an empty folder or none"
        )
    return folder


def _is_data_dir_given() -> bool:
    """Return whether the option stands before or after the command's name."""
    context: click.Context | None = click.get_current_context()
    while context is not None:
        if context.get_parameter_source("data_dir") is ParameterSource.COMMANDLINE:
            return True
        context = context.parent
    return False


class ReadyFile:
    """The file whose existence shows that the service is ready. It appears complete, and only its owner can read it.

    The methods raise `ConfigError` if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._scratch = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")

    def clear(self) -> None:
        """Remove an old file before the start. Raise an error at once if the file cannot be created later."""
        with writable("The ready file"):
            self._path.unlink(missing_ok=True)
            self._scratch.touch(mode=0o600)
            self._scratch.unlink()

    @contextlib.contextmanager
    def written(self, facts: Mapping[str, object]) -> Iterator[None]:
        """Write the file, and remove it at the end of the block."""
        with writable("The ready file"):
            self._scratch.touch(mode=0o600)
            self._scratch.write_text(json.dumps({**facts, "pid": os.getpid()}) + "\n")
            scratch_file = self._scratch.open()
            self._scratch.replace(self._path)
        with scratch_file:  # while it is open, no other file gets its inode number
            try:
                yield
            finally:
                if self._is(os.fstat(scratch_file.fileno())):
                    self._path.unlink(missing_ok=True)

    def _is(self, status: os.stat_result) -> bool:
        """Return whether the file is still ours. A later `up` with the same path replaces it, perhaps with the same
        process id."""
        with contextlib.suppress(OSError):
            return os.path.samestat(self._path.stat(), status)
        return False


if TYPE_CHECKING:
    from forgelet.local.runner import Rules
    from forgelet.testing.api import Api

#: The value of `--runner` without a file, and of its variable.
PLAYS_ALL = "1"
runner_option = click.option(
    "--runner",
    is_flag=False,
    flag_value=PLAYS_ALL,
    metavar="[RULES]",
    show_envvar=True,
    help="Play the jobs of pipelines without executing them, as the file RULES says; by default all succeed.",
)
_TOKEN = "built-in-runner-token"
#: The runner of a server for tests takes jobs with any tags; other runners take only jobs without tags.
_ALL_TAGS = "*"


def rules_of(option: str | None) -> "Rules | None":
    """Return the rules of the runner, or None if there is to be none. Raise `ConfigError` if they are invalid."""
    if option is None:
        return None
    from forgelet.local.runner import Rules, read_rules  # imported here, so that a usual start is faster

    return Rules() if option == PLAYS_ALL else read_rules(Path(option))


@contextlib.contextmanager
def playing(forgelet: Forgelet, rules: "Rules") -> Iterator[None]:
    """Play jobs for the duration of the block. Raise `CannotStart` if the runner cannot be registered."""
    from forgelet.local.runner import BuiltInRunner
    from forgelet.testing.api import ApiError

    data = forgelet.plan.data
    runner = BuiltInRunner(
        forgelet.api(),
        rules,
        kind={
            "runner_type": "instance_type",
            "description": "Built-in runner",
            "tag_list": [_ALL_TAGS] if forgelet.plan.testing else [],
        },
        recall=lambda: data.read_secret(_TOKEN),
        remember=lambda token: data.write_secret(_TOKEN, token),
    )
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(runner.working())
        except (ApiError, OSError) as problem:
            raise CannotStart(f"The built-in runner cannot be registered: {problem}") from None
        yield


if TYPE_CHECKING:
    from forgelet.local.runner import Rules

_port = click.IntRange(0, 65535)


@click.command(
    cls=Command,
    context_settings={"auto_envvar_prefix": "FORGELET", "show_default": True, "max_content_width": 110},
)
@click.option(
    "--api-port",
    type=_port,
    show_envvar=True,
    help="Port of the API server; 0 is a free port.",
    show_default=f"{API_PORT}; with --testing 0",
)
@click.option(
    "--edge-port",
    type=_port,
    show_envvar=True,
    help="Port of the storage edge; 0 is a free port.",
    show_default=f"{EDGE_PORT}; with --testing 0",
)
@click.option(
    "--host",
    type=listen_address,
    default=HOST,
    metavar="ADDRESS",
    show_envvar=True,
    help="IPv4 address on which both listen; 0.0.0.0 means all addresses and lets other machines in.",
)
@click.option(
    "--external-host",
    type=external_name,
    metavar="NAME",
    show_envvar=True,
    help="Name or address by which others reach this machine, for the URLs in answers.",
    show_default="--host, but 127.0.0.1 for 0.0.0.0",
)
@click.option(
    "--root-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    show_envvar=True,
    help="File with the personal access token of the administrator `root`; by default the first run creates one "
    "and keeps it.",
)
@click.option(
    "--root-token",
    show_envvar=True,
    help="The token itself; use the variable, because options are visible in process lists.",
)
@click.option(
    "--database-url",
    show_envvar=True,
    help="A PostgreSQL 15 or newer to use instead of our own: postgresql://user:password@host/database. Use the "
    "variable to keep the password out of process lists.",
)
@click.option("--no-demo", is_flag=True, show_envvar=True, help="Create no demo users, groups and projects.")
@click.option("--no-edge", is_flag=True, show_envvar=True, help="Run without the storage edge.")
@click.option(
    "--gitlab-version",
    type=checked_gitlab_version,
    metavar="VERSION",
    show_envvar=True,
    help="Version of GitLab in /version, /metadata and CI_SERVER_VERSION, such as 17.11.",
)
@click.option(
    "--testing",
    is_flag=True,
    show_envvar=True,
    help="Run a server for tests: free ports, no demo data, everything in memory and removed at the end. "
    "Everybody who reaches it can reset it, move its clock and order failures.",
)
@runner_option
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    show_envvar=True,
    help="File with addresses and token as JSON; it exists while the service can be used.",
)
@click.option(
    "--start-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=START_TIMEOUT,
    metavar="SECONDS",
    show_envvar=True,
    help="Give up if not everything is ready after this time. A line every ten seconds says what it waits for.",
)
@click.option(
    "--until-eof",
    is_flag=True,
    show_envvar=True,
    help="Also end when standard input ends, with the program that holds the other end of the pipe.",
)
@click.option("--data-dir", **DATA_DIR, help="Folder of all data: empty, not existing, or of an earlier run.")
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
    """Run forgelet on this machine until Ctrl-C, with demo data.

    It starts PostgreSQL, API server and storage edge. Everything is stored below --data-dir, by default .forgelet in
    a checkout and ~/.local/share/forgelet otherwise (XDG_DATA_HOME counts), so the next run finds it. If PostgreSQL
    cannot run there, as for root below /root, the database is in a folder of its own, which is printed. To start
    again from nothing, stop it and delete both. Without --host, other machines cannot reach it.

    With --testing it is a server for tests; several may run at once. --ready-file tells programs where it is. A
    --data-dir, which must be empty, keeps its data.

    FORGELET_POSTGRES_VERSION chooses the PostgreSQL for new data (such as 18) instead of the machine's newest. For
    scripts/up, FORGELET_PYTHON chooses the Python (a command or path) instead of the first on PATH.
    """
    token = checked_root_token(root_token, root_token_file)
    if shutil.which("git") is None:
        raise CannotStart("The program git was not found; install it and try again")
    named = folder_for_tests(instance, database_url) if testing else instance.named
    if database_url:
        embedded_postgres.check_external(database_url)
    ports = _addresses(api_port, edge_port, no_edge=no_edge, testing=testing)
    addresses = attrs.evolve(ports, host=host, external_host=external_host)
    overrides = {} if gitlab_version is None else {f"{API.prefix}GITLAB_VERSION": gitlab_version}
    with _data(named, passing=testing) as data:
        run(
            Plan(data, addresses, database_url, testing, overrides, start_timeout),
            root_token=token,
            with_demo=not (no_demo or testing),
            rules=rules_of(runner),
            ready_file=ReadyFile(ready_file) if ready_file else None,
            is_over=_until_eof() if until_eof else never,
        )


def _addresses(api_port: int | None, edge_port: int | None, *, no_edge: bool, testing: bool) -> Addresses:
    usual = Addresses(0, 0) if testing else Addresses()
    edge_port = usual.edge_port if edge_port is None else edge_port
    return Addresses(usual.api_port if api_port is None else api_port, None if no_edge else edge_port)


def _data(folder: Path | None, *, passing: bool) -> contextlib.AbstractContextManager[DataDirectory]:
    if passing and folder is None:
        return passing_data()
    return contextlib.nullcontext(DataDirectory(folder or default_data_dir()))


def run(
    plan: Plan,
    *,
    root_token: str | None,
    with_demo: bool,
    rules: "Rules | None",
    ready_file: ReadyFile | None,
    is_over: Callable[[float], bool],
) -> NoReturn:
    """Run `plan` until a signal, the end of one of its processes, or `is_over`. Then end this program."""
    forgelet = Forgelet(plan, echo, is_over)
    _obey_signals(forgelet)
    os.umask(0o077)
    if plan.database_url is None:
        embedded_postgres.forget_variables()
    started_at = time.monotonic()
    with plan.data.opened():
        if ready_file:
            ready_file.clear()
        if root_token is not None:
            plan.data.write_secret("root-token", root_token)
            plan.data.remember(TOKEN_SHOWN, "yes")
        with forgelet:
            from forgelet.local import demo_data  # imported here, where the import delays nothing

            plan = forgelet.plan  # with the actual ports
            echo(f"Ready after {time.monotonic() - started_at:.1f} s.")
            if with_demo:
                demo_data.ensure(forgelet.api(), plan.data, CHECKOUT, echo)
            with playing(forgelet, rules) if rules else contextlib.nullcontext():
                if plan.testing:
                    forgelet.begin_here()
                with ready_file.written(facts_of(plan)) if ready_file else contextlib.nullcontext():
                    with contextlib.suppress(OSError):
                        answer(places_of(plan), what_next(plan, with_demo=with_demo))
                    if not plan.testing:  # in a thread, because its imports take longer than all the rest
                        link = functools.partial(print_sign_in_link, plan, forgelet.api())
                        threading.Thread(target=link, daemon=True).start()
                    demo_story = demo_data.story_in_background(forgelet.api(), plan.data, echo)
                    with demo_story if with_demo else contextlib.nullcontext():
                        forgelet.watch()
    sys.exit(0)


def echo(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be closed
        print(text, flush=True, file=sys.stderr if wants_json() else sys.stdout)


def _obey_signals(forgelet: Forgelet) -> None:
    """End everything on Ctrl-C and SIGTERM, and at once on the second of these signals. Pass SIGHUP on to the servers,
    unless it means that the terminal is closed."""
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
    """Return whether standard input ends within `seconds`. Its content is ignored."""
    try:
        readable, _, _ = select.select([0], [], [], seconds)
        return bool(readable) and not os.read(0, 65536)
    except OSError:  # it is closed
        return True


def places_of(plan: Plan) -> dict[str, str | None]:
    """Return the facts about the running service that a program needs."""
    return {
        "api_url": plan.addresses.external_url,
        "edge_url": plan.addresses.external_edge_url,
        "root_token_file": str(plan.data.secret_file("root-token")),
        "data_dir": str(plan.data.path),
    }


def facts_of(plan: Plan) -> dict[str, str | None]:
    """Return what the ready file contains."""
    from importlib import metadata

    return {
        "url": plan.addresses.external_url,
        "api_url": f"{plan.addresses.external_url}/api/v4",
        "edge_url": plan.addresses.external_edge_url,
        "root_token": plan.data.read_secret("root-token"),
        "data_dir": str(plan.data.path),
        "version": metadata.version("forgelet"),
    }


def what_next(plan: Plan, *, with_demo: bool) -> str:
    """Return the closing text: addresses, the administrator's token the first time, and commands to paste."""
    if plan.testing:
        return for_testers(plan)
    command = own_command(None if plan.data.path == default_data_dir() else plan.data.path)
    token = f"in {plan.data.secret_file('root-token')}"
    if plan.data.recall(TOKEN_SHOWN) is None:
        token = f"{plan.data.read_secret('root-token')}  (shown this once)"
        plan.data.remember(TOKEN_SHOWN, "yes")
    lines = [
        "",
        f"  Pages          {plan.addresses.external_url}",
        f"  API server     {plan.addresses.external_url}/api/v4",
        f"  Storage edge   {plan.addresses.external_edge_url or 'not running (--no-edge)'}",
        f"  Administrator  root, token {token}",
        "                 replace it with --root-token-file FILE; for a link that signs in, or a password:",
        f"                 {command} user sign-in-link root",
        f"                 {command} user password root",
        f"  Data and logs  {plan.data.path}",
        "",
        *commands_to_try(plan, with_demo=with_demo),
        "",
        "Ctrl-C stops everything.",
    ]
    return "\n".join(lines)


def print_sign_in_link(plan: Plan, administrator: "Api") -> None:
    """Print a link with which the administrator can sign in, or nothing if it cannot be created."""
    from api_server.accounts import sign_in_links
    from api_server.state.secrets import UnusableKey, open_vault
    from forgelet.testing.api import ApiError

    with contextlib.suppress(ApiError, OSError, UnusableKey):
        root = administrator.get(f"users/{administrator.get('user')['id']}")
        vault, now = open_vault(plan.data.part("api")), datetime.datetime.now(datetime.UTC)
        token = sign_in_links.new_token(vault, root["id"], root["sign_in_count"], now)
        link = f"{plan.addresses.external_url}/-/sign_in/{token}"
        echo(f"To sign in as {root['username']}, open {link} (works once, within 15 minutes)")


def for_testers(plan: Plan) -> str:
    """Return the closing text of a server for tests, whose token is no secret. The commands show its controls."""
    token = plan.data.read_secret("root-token")
    return "\n".join(
        [
            "",
            f"  url            {plan.addresses.external_url}",
            f"  api_url        {plan.addresses.external_url}/api/v4",
            f"  edge_url       {plan.addresses.external_edge_url or 'null (--no-edge)'}",
            f"  root_token     {token}",
            f"  data_dir       {plan.data.path}",
            "",
            "Programs find this in the file that --ready-file names. Try:",
            f"  curl -H 'PRIVATE-TOKEN: {token}' -d name=first {plan.addresses.external_url}/api/v4/projects",
            "",
            "  # what was asked and answered; then as it was after the start",
            f"  curl {plan.addresses.external_url}/-/testing/requests",
            f"  curl -X POST {plan.addresses.external_url}/-/testing/reset",
            "",
            "Ctrl-C stops everything, and nothing of it is left.",
        ]
    )


def commands_to_try(plan: Plan, *, with_demo: bool) -> list[str]:
    """Return lines with commands to try, which work in any shell and folder."""
    from forgelet.local import demo_data

    api, raw = plan.addresses.external_url, plan.addresses.external_edge_url or plan.addresses.external_url
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
    from forgelet.local import demo_data

    file = plan.data.secret_file(demo_data.token_name(username))
    return f'"PRIVATE-TOKEN: $(cat {quote(str(file))})"'
