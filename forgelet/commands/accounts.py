"""Accounts, personal access tokens and runners: commands that make changes as the API does."""

import asyncio
import datetime
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

import attrs
import click

from api_server.accounts import sign_in_links, token_queries, tokens, user_queries, users
from api_server.accounts.instance_settings import current
from api_server.accounts.passwords import problem_with
from api_server.accounts.user_queries import User
from api_server.ci.runners import changes as runner_changes
from api_server.namespaces import namespace_queries, project_queries
from api_server.pages.admin import queries as admin_queries
from api_server.services import Services
from api_server.state.database import Database, Executor
from api_server.state.listing import ListPage, Page
from api_server.web.auth import ALL_SCOPES
from common.config_errors import ConfigError
from forgelet.commands.acting import author, changing, services_of
from forgelet.commands.queries import read_rows
from forgelet.frame import Group, answer, limit_option, table
from forgelet.instance import Instance

ResultT = TypeVar("ResultT")

PASSWORD_OPTION = click.option(
    "--password",
    metavar="TEXT",
    help="The password. By default it is asked for at a terminal, or read from the first line of standard input,"
    " which keeps it out of process lists.",
)


def _read_password(
    instance: Instance, password: str | None, check: Callable[[Services], Awaitable[object]]
) -> str:
    """Return the given `password`, otherwise one that is typed twice at a terminal, otherwise the first line of
    standard input. Raise `ConfigError` if there is none, and before it is typed if `check` raises it."""
    if password is None:
        _with_services(instance, check)
        if sys.stdin.isatty():
            password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        else:
            password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise ConfigError("No password was given: type it, send it through standard input, or use --password")
    if problem := problem_with(password):
        raise ConfigError(f"The password {problem}")
    return password


def _with_services(instance: Instance, work: Callable[[Services], Awaitable[ResultT]]) -> ResultT:
    async def run() -> ResultT:
        async with services_of(instance) as services:
            return await work(services)

    return asyncio.run(run())


@click.group(cls=Group)
def user() -> None:
    """Create, list and block accounts, and let people sign in."""


@user.command("list")
@click.option("--search", help="Only users whose name or username contains this, or with this email address.")
@limit_option
@click.pass_obj
def list_users(instance: Instance, limit: int, search: str | None) -> None:
    """List users, newest first."""

    async def read(database: Database, page: Page) -> ListPage:
        return await user_queries.list_users(
            database,
            page,
            for_administrator=True,
            username=None,
            search=search,
            active=False,
            blocked=False,
            bots=None,
        )

    columns = ["id", "username", "name", "email", "state", "is_admin", "bot", "last_activity_on"]
    table(columns, read_rows(instance, limit, read))


@user.command("create")
@click.option("--username", required=True, help="Name for signing in; the user's projects are below it.")
@click.option("--email", required=True, help="E-mail address; it counts as confirmed.")
@click.option("--name", required=True, help="Name that others see.")
@click.option("--admin", is_flag=True, help="Make the user an administrator.")
@PASSWORD_OPTION
@click.pass_obj
def create_user(
    instance: Instance, username: str, email: str, name: str, password: str | None, *, admin: bool
) -> None:
    """Create an account and print its ID.

    The account has a namespace for its projects.
    """
    if not name.strip():
        raise ConfigError("--name is empty: give the name that other users see")
    new = users.NewUser(username=username, email=email, name=name, admin=admin, confirmed=True)

    async def check(services: Services) -> None:
        async with changing(services) as transaction:
            await users.check_new(transaction, new)

    async def create(services: Services) -> int:
        complete = attrs.evolve(
            new,
            password_hash=services.vault.hash_password(checked_password),
            projects_limit=(await current(services)).default_projects_limit,
        )
        async with changing(services) as transaction:
            return await users.create(services, transaction, complete, author())

    checked_password = _read_password(instance, password, check)
    user_id = _with_services(instance, create)
    answer(
        {"id": user_id, "username": username, "email": email, "name": name},
        f"User {username} has id {user_id}.",
    )


@user.command("password")
@click.argument("username")
@PASSWORD_OPTION
@click.pass_obj
def set_password(instance: Instance, username: str, password: str | None) -> None:
    """Set the password of USERNAME.

    Sessions in browsers end, tokens stay valid.
    """

    async def check(services: Services) -> None:
        await find_user(services.database, username)

    async def change(services: Services, account: User) -> None:
        values = dict.fromkeys(field.name for field in attrs.fields(users.NewUser))
        values["password_hash"] = services.vault.hash_password(checked_password)
        async with changing(services, revokes=f"user:{account.id}") as transaction:
            await users.update(services, transaction, account.id, author(), **values)

    checked_password = _read_password(instance, password, check)
    _with_user(instance, username, change)
    answer({"username": username}, f"The password of {username} is set.")


@user.command("block")
@click.argument("username")
@click.pass_obj
def block(instance: Instance, username: str) -> None:
    """Block USERNAME.

    Afterwards none of the user's tokens, sessions and passwords works.
    """
    _set_state(instance, username, "blocked")


@user.command("unblock")
@click.argument("username")
@click.pass_obj
def unblock(instance: Instance, username: str) -> None:
    """Unblock USERNAME."""
    _set_state(instance, username, "active")


def _set_state(instance: Instance, username: str, state: Literal["active", "blocked"]) -> None:
    async def change(services: Services, account: User) -> bool:
        async with changing(services, revokes=f"user:{account.id}") as transaction:
            return await users.set_state(services, transaction, account.id, state, author())

    changed = _with_user(instance, username, change)
    answer(
        {"username": username, "state": state, "changed": changed},
        f"{username} is {state}{'' if changed else ' already'}.",
    )


@user.command("sign-in-link")
@click.argument("username")
@click.pass_obj
def sign_in_link(instance: Instance, username: str) -> None:
    """Print a link that signs USERNAME in without a password.

    The link works once, within 15 minutes. It is for an account without a password, or whose password is lost where
    no mail is sent. Only the person should get it.
    """

    link = _with_user(instance, username, _link_for)
    answer({"username": username, "link": link}, link)


async def _link_for(services: Services, user: User) -> str:
    if user.bot:
        raise ConfigError(f"{user.username} is a bot, which uses its token and cannot sign in")
    entity = json.loads(await user_queries.show_user(services.database, user.id, "user_in_detail"))
    token = sign_in_links.new_token(services.vault, user.id, entity["sign_in_count"], services.clock())
    return f"{services.settings.base_url}/-/sign_in/{token}"


async def find_user(database: Executor, username: str) -> User:
    """Return the account. Raise `ConfigError` if there is none."""
    account = await user_queries.find_user_by_username(database, username)
    if account is None:
        raise ConfigError(f"There is no user {username}")
    return account


def _with_user(
    instance: Instance, username: str, work: Callable[[Services, User], Awaitable[ResultT]]
) -> ResultT:
    async def run(services: Services) -> ResultT:
        return await work(services, await find_user(services.database, username))

    return _with_services(instance, run)


_LONGEST_NAME = 255


@click.group(cls=Group)
def token() -> None:
    """Create, list and revoke personal access tokens."""


@token.command("create")
@click.option("--user", "username", metavar="USERNAME", required=True, help="User who owns the token.")
@click.option("--name", required=True, help="Name that says what the token is for.")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(ALL_SCOPES),
    metavar="SCOPE",
    multiple=True,
    required=True,
    help=f"Scope of the token; may be repeated: {', '.join(ALL_SCOPES)}.",
)
@click.option(
    "--expires-at",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DAY",
    help="First day (UTC) on which it no longer works.",
)
@click.pass_obj
def create_token(
    instance: Instance,
    username: str,
    name: str,
    scopes: tuple[str, ...],
    expires_at: datetime.datetime | None,
) -> None:
    """Create a token and print it. It is shown only once, because only its digest is stored."""
    if not name.strip() or len(name) > _LONGEST_NAME:
        raise ConfigError(f"--name has to be 1 to {_LONGEST_NAME} characters")

    async def create(services: Services, owner: User) -> str:
        if expires_at and expires_at.date() <= services.clock().date():
            raise ConfigError("--expires-at has to be a day in the future: the token would never work")
        new = tokens.NewToken(
            user_id=owner.id,
            name=name,
            scopes=list(dict.fromkeys(scopes)),
            expires_at=expires_at.date() if expires_at else None,
        )
        async with changing(services) as transaction:
            return await tokens.create(transaction, new, owner.username, owner.name, author())

    created = json.loads(_with_user(instance, username, create))
    answer(created, created["token"])


@token.command("list")
@click.option("--user", "username", metavar="USERNAME", help="Only tokens of this user.")
@click.option("--all", "all_states", is_flag=True, help="Also expired and revoked tokens.")
@limit_option
@click.pass_obj
def list_tokens(instance: Instance, limit: int, username: str | None, *, all_states: bool) -> None:
    """List personal access tokens, newest first."""

    async def read(database: Database, page: Page) -> ListPage:
        if username is not None:
            await find_user(database, username)
        state: admin_queries.TokenState | None = None if all_states else "active"
        return await admin_queries.list_tokens(database, page, username=username, state=state)

    columns = ["id", "username", "name", "scopes", "created_at", "last_used_at", "expires_at"]
    table([*columns, "revoked"] if all_states else columns, read_rows(instance, limit, read))


@token.command("revoke")
@click.argument("token_id", metavar="ID", type=int)
@click.pass_obj
def revoke_token(instance: Instance, token_id: int) -> None:
    """Revoke the token with this ID."""

    async def revoke(services: Services) -> str:
        row = await token_queries.find_token(services.database, token_id)
        if row is None:
            raise ConfigError(f"There is no personal access token with id {token_id}")
        async with changing(services, revokes=f"token:{token_id}") as transaction:
            await tokens.revoke(services, transaction, row, author())
        return row.username

    username = _with_services(instance, revoke)
    answer(
        {"id": token_id, "username": username, "revoked": True}, f"Token {token_id} of {username} is revoked."
    )


@click.group(cls=Group)
def runner() -> None:
    """Create runners, the programs that execute jobs."""


@runner.command("create")
@click.option("--description", default="", help="Description that people see.")
@click.option("--tag", "tags", multiple=True, help="Tag of jobs that it takes; may be repeated.")
@click.option("--tagged-only", is_flag=True, help="Take no jobs without tags.")
@click.option("--project", "project_path", metavar="PATH", help="Serve only this project.")
@click.option("--group", "group_path", metavar="PATH", help="Serve only the projects of this group.")
@click.pass_obj
def create_runner(
    instance: Instance,
    description: str,
    tags: tuple[str, ...],
    project_path: str | None,
    group_path: str | None,
    *,
    tagged_only: bool,
) -> None:
    """Create a runner and print its token.

    By default the runner serves the whole instance. The token is shown only once.

    Pass the token to a runner program: gitlab-runner register --url URL --token TOKEN.
    """
    if project_path and group_path:
        raise ConfigError("--project and --group contradict each other: give one of them")

    async def create(services: Services) -> tuple[int, str]:
        new = runner_changes.NewRunner(
            description=description,
            tag_list=tags,
            run_untagged=not tagged_only,
            project_id=await _project(services, project_path) if project_path else None,
            namespace_id=await _group(services, group_path) if group_path else None,
        )
        async with changing(services) as transaction:
            return await runner_changes.create(transaction, new, author())

    runner_id, token = _with_services(instance, create)
    answer({"id": runner_id, "token": token}, token)


async def _project(services: Services, path: str) -> int:
    project = await project_queries.find_project(
        services.database, project_id=None, path=path, user_id=None, admin=True, job_project_id=None
    )
    if project is None:
        raise ConfigError(f"There is no project {path}")
    return project.id


async def _group(services: Services, path: str) -> int:
    group = await namespace_queries.find_group(
        services.database, group_id=None, path=path, user_id=0, admin=True
    )
    if group is None:
        raise ConfigError(f"There is no group {path}")
    return group.id
