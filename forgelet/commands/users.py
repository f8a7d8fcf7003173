"""Accounts: making them, their passwords, and letting them in or not."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import attrs
import click
from aiohttp import web

from api_server.accounts import user_queries, users
from api_server.accounts.instance_settings import current
from api_server.accounts.passwords import problem_with
from api_server.accounts.user_queries import User
from api_server.state.database import Executor
from api_server.web.context import DATABASE, VAULT
from common.mistakes import Mistake
from forgelet import passwords
from forgelet.acting import application, author, changing
from forgelet.frame import Group
from forgelet.instance import Instance
from forgelet.output import answer


@click.group(cls=Group)
def user() -> None:
    """Accounts: make one, set its password, block and unblock it."""


@user.command()
@click.option("--username", required=True, help="What she signs in with; her projects are below it.")
@click.option("--email", required=True, help="Her address; it counts as confirmed.")
@click.option("--name", required=True, help="Her name, as others see it.")
@click.option("--admin", is_flag=True, help="She is to administer the instance.")
@passwords.OPTION
@click.pass_obj
def create(
    instance: Instance, username: str, email: str, name: str, password: str | None, *, admin: bool
) -> None:
    """Makes an account, with a namespace for its projects, and prints its id."""
    if not name.strip():
        raise Mistake("--name is empty: give the name that others are to see")
    new = users.NewUser(username=username, email=email, name=name, admin=admin, confirmed=True)
    chosen = _acceptable(passwords.read(password))

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
@passwords.OPTION
@click.pass_obj
def set_password(instance: Instance, username: str, password: str | None) -> None:
    """Sets the password of USERNAME; sessions in browsers end, tokens do not."""
    chosen = _acceptable(passwords.read(password))

    async def change(app: web.Application, found: User) -> None:
        values = dict.fromkeys(field.name for field in attrs.fields(users.NewUser))
        values["password_hash"] = app[VAULT].hash_password(chosen)
        async with changing(app, ends=f"user:{found.id}") as transaction:
            await users.update(app, transaction, found.id, author(), **values)

    _with_user(instance, username, change)
    answer({"username": username}, f"The password of {username} is set.")


@user.command()
@click.argument("username")
@click.pass_obj
def block(instance: Instance, username: str) -> None:
    """Lets USERNAME in no longer: no token, session or password of hers works."""
    _set_state(instance, username, "blocked")


@user.command()
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


async def find(database: Executor, username: str) -> User:
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
            return await change(app, await find(app[DATABASE], username))

    return asyncio.run(run())


def _acceptable(password: str) -> str:
    if problem := problem_with(password):
        raise Mistake(f"The password {problem}")
    return password
