"""Accounts, personal access tokens and runners: commands that change something as the API does."""

import asyncio
import datetime
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import attrs
import click
from aiohttp import web

from api_server.accounts import token_queries, tokens, user_queries, users
from api_server.accounts.instance_settings import current
from api_server.accounts.passwords import problem_with
from api_server.accounts.user_queries import User
from api_server.ci.runners import changes as runner_changes
from api_server.namespaces import namespace_queries, project_queries
from api_server.state.database import Executor
from api_server.web.auth import ALL_SCOPES
from api_server.web.context import DATABASE, VAULT
from common.mistakes import Mistake
from forgelet.commands.acting import application, author, changing
from forgelet.frame import Group, answer
from forgelet.instance import Instance

PASSWORD_OPTION = click.option(
    "--password",
    metavar="TEXT",
    help="The password itself; without it, it is asked for at a terminal, else it is the first line of standard input,"
    " which shows it to nobody who lists processes.",
)


def read_password(given: str | None) -> str:
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


@click.group(cls=Group)
def user() -> None:
    """Accounts: make one, set its password, block and unblock it."""


@user.command("create")
@click.option("--username", required=True, help="What she signs in with; her projects are below it.")
@click.option("--email", required=True, help="Her address; it counts as confirmed.")
@click.option("--name", required=True, help="Her name, as others see it.")
@click.option("--admin", is_flag=True, help="She is to administer the instance.")
@PASSWORD_OPTION
@click.pass_obj
def create_user(
    instance: Instance, username: str, email: str, name: str, password: str | None, *, admin: bool
) -> None:
    """Makes an account, with a namespace for its projects, and prints its id."""
    if not name.strip():
        raise Mistake("--name is empty: give the name that others are to see")
    new = users.NewUser(username=username, email=email, name=name, admin=admin, confirmed=True)
    chosen = _acceptable(read_password(password))

    async def run() -> int:
        async with application(instance) as app:
            whole = attrs.evolve(
                new,
                password_hash=app[VAULT].hash_password(chosen),
                projects_limit=(await current(app)).default_projects_limit,
            )
            async with changing(app) as transaction:
                return await users.create(app, transaction, whole, author())

    user_id = asyncio.run(run())
    answer(
        {"id": user_id, "username": username, "email": email, "name": name},
        f"User {username} has id {user_id}.",
    )


@user.command("password")
@click.argument("username")
@PASSWORD_OPTION
@click.pass_obj
def set_password(instance: Instance, username: str, password: str | None) -> None:
    """Sets the password of USERNAME; sessions in browsers end, tokens do not."""
    chosen = _acceptable(read_password(password))

    async def change(app: web.Application, found: User) -> None:
        values = dict.fromkeys(field.name for field in attrs.fields(users.NewUser))
        values["password_hash"] = app[VAULT].hash_password(chosen)
        async with changing(app, ends=f"user:{found.id}") as transaction:
            await users.update(app, transaction, found.id, author(), **values)

    _with_user(instance, username, change)
    answer({"username": username}, f"The password of {username} is set.")


@user.command("block")
@click.argument("username")
@click.pass_obj
def block(instance: Instance, username: str) -> None:
    """Lets USERNAME in no longer: no token, session or password of hers works."""
    _set_state(instance, username, "blocked")


@user.command("unblock")
@click.argument("username")
@click.pass_obj
def unblock(instance: Instance, username: str) -> None:
    """Lets USERNAME in again."""
    _set_state(instance, username, "active")


def _set_state(instance: Instance, username: str, state: Literal["active", "blocked"]) -> None:
    async def change(app: web.Application, found: User) -> bool:
        async with changing(app, ends=f"user:{found.id}") as transaction:
            return await users.set_state(app, transaction, found.id, state, author())

    changed = _with_user(instance, username, change)
    answer(
        {"username": username, "state": state, "changed": changed},
        f"{username} is {state}{'' if changed else ' already'}.",
    )


async def find_user(database: Executor, username: str) -> User:
    """The account. Raises `Mistake` where there is none."""
    found = await user_queries.find_user_by_username(database, username)
    if found is None:
        raise Mistake(f"There is no user {username}")
    return found


def _with_user(
    instance: Instance, username: str, change: Callable[[web.Application, User], Awaitable[bool | None]]
) -> bool | None:
    async def run() -> bool | None:
        async with application(instance) as app:
            return await change(app, await find_user(app[DATABASE], username))

    return asyncio.run(run())


def _acceptable(password: str) -> str:
    if problem := problem_with(password):
        raise Mistake(f"The password {problem}")
    return password


_LONGEST_NAME = 255


@click.group(cls=Group)
def token() -> None:
    """Personal access tokens, with which programs sign in as a user."""


@token.command("create")
@click.option("--user", "username", metavar="USERNAME", required=True, help="Whose it is to be.")
@click.option("--name", required=True, help="What it is for.")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(ALL_SCOPES),
    metavar="SCOPE",
    multiple=True,
    required=True,
    help=f"What it opens, may be given several times: {', '.join(ALL_SCOPES)}.",
)
@click.option(
    "--expires-at", type=click.DateTime(["%Y-%m-%d"]), metavar="DAY", help="First day (UTC) without it."
)
@click.pass_obj
def create_token(
    instance: Instance,
    username: str,
    name: str,
    scopes: tuple[str, ...],
    expires_at: datetime.datetime | None,
) -> None:
    """Makes a token and prints it: this once, for only its digest is kept."""
    if not name.strip() or len(name) > _LONGEST_NAME:
        raise Mistake(f"--name has to be 1 to {_LONGEST_NAME} characters")

    async def run() -> dict[str, Any]:
        async with application(instance) as app:
            owner = await find_user(app[DATABASE], username)
            new = tokens.NewToken(
                user_id=owner.id,
                name=name,
                scopes=list(dict.fromkeys(scopes)),
                expires_at=expires_at.date() if expires_at else None,
            )
            async with changing(app) as transaction:
                made = await tokens.create(transaction, new, owner.username, owner.name, author())
        shown: dict[str, Any] = json.loads(made)
        return shown

    made = asyncio.run(run())
    answer(made, made["token"])


@token.command("revoke")
@click.argument("token_id", metavar="ID", type=int)
@click.pass_obj
def revoke_token(instance: Instance, token_id: int) -> None:
    """Makes the token ID open nothing any more."""

    async def run() -> str:
        async with application(instance) as app:
            found = await token_queries.find_token(app[DATABASE], token_id)
            if found is None:
                raise Mistake(f"There is no personal access token with id {token_id}")
            async with changing(app, ends=f"token:{token_id}") as transaction:
                await tokens.revoke(app, transaction, found, author())
            return found.username

    username = asyncio.run(run())
    answer(
        {"id": token_id, "username": username, "revoked": True}, f"Token {token_id} of {username} is revoked."
    )


@click.group(cls=Group)
def runner() -> None:
    """Runners: the programs that execute jobs."""


@runner.command("create")
@click.option("--description", default="", help="What people see of it.")
@click.option(
    "--tag", "tags", multiple=True, help="Jobs with this tag are its own; may be given several times."
)
@click.option("--tagged-only", is_flag=True, help="It takes no jobs without tags.")
@click.option("--project", "project_path", metavar="PATH", help="It serves this project only.")
@click.option("--group", "group_path", metavar="PATH", help="It serves the projects of this group only.")
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
    """Makes a runner, of the whole instance unless something else is said, and prints its token: this once.

    The token is what a runner program is given: gitlab-runner register --url URL --token TOKEN.
    """
    if project_path and group_path:
        raise Mistake("--project and --group contradict each other: give one of them")

    async def run() -> tuple[int, str]:
        async with application(instance) as app:
            new = runner_changes.NewRunner(
                description=description,
                tag_list=tags,
                run_untagged=not tagged_only,
                project_id=await _project(app, project_path) if project_path else None,
                namespace_id=await _group(app, group_path) if group_path else None,
            )
            async with changing(app) as transaction:
                return await runner_changes.create(transaction, new, author())

    runner_id, token = asyncio.run(run())
    answer({"id": runner_id, "token": token}, token)


async def _project(app: web.Application, path: str) -> int:
    found = await project_queries.find_project(
        app[DATABASE], project_id=None, path=path, user_id=None, admin=True, job_project_id=None
    )
    if found is None:
        raise Mistake(f"There is no project {path}")
    return found.id


async def _group(app: web.Application, path: str) -> int:
    found = await namespace_queries.find_group(app[DATABASE], group_id=None, path=path, user_id=0, admin=True)
    if found is None:
        raise Mistake(f"There is no group {path}")
    return found.id
