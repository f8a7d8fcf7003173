"""Personal access tokens: making, listing and revoking them."""

import asyncio
import datetime
import json
from typing import Any

import click

from api_server.accounts import token_queries, tokens
from api_server.web.auth import ALL_SCOPES
from api_server.web.context import DATABASE
from common.mistakes import Mistake
from forgelet.acting import application, author, changing
from forgelet.commands.users import find
from forgelet.frame import Group
from forgelet.instance import Instance
from forgelet.output import answer

_LONGEST_NAME = 255


@click.group(cls=Group)
def token() -> None:
    """Personal access tokens, with which programs sign in as a user."""


@token.command()
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
def create(
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
            owner = await find(app[DATABASE], username)
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


@token.command()
@click.argument("token_id", metavar="ID", type=int)
@click.pass_obj
def revoke(instance: Instance, token_id: int) -> None:
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
