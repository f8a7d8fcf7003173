"""Commands for the keys that sign identity tokens of jobs: listing and rotation."""

import asyncio
import datetime
from typing import Any

import click

from api_server.ci.identity import keys, queries
from forgelet.commands.acting import author, services_of
from forgelet.frame import Group, answer, table
from forgelet.instance import Instance


@click.group("identity-key", cls=Group)
def identity_key() -> None:
    """List and rotate the keys that sign identity tokens."""


@identity_key.command("list")
@click.pass_obj
def list_keys(instance: Instance) -> None:
    """List the published keys, and what each is used for."""

    async def run() -> list[dict[str, Any]]:
        async with instance.database() as database:
            return _rows(await queries.list_keys(database), database.now)

    table(["kid", "use", "signs_from"], asyncio.run(run()))


def _rows(keys: list[queries.ShownKey], now: datetime.datetime) -> list[dict[str, Any]]:
    """Return a row for each key; `keys` has the newest first."""
    signing = next((key for key in keys if key.signs_from <= now), keys[-1] if keys else None)
    return [
        {
            "kid": key.kid,
            "use": "signs" if key is signing else "verifies" if key.signs_from <= now else "signs later",
            "signs_from": key.signs_from.isoformat(timespec="seconds"),
        }
        for key in keys
    ]


@identity_key.command()
@click.option(
    "--revoke",
    is_flag=True,
    help="Sign with the new key at once, and remove all others, because somebody else may have them.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def rotate(instance: Instance, *, revoke: bool, yes: bool) -> None:
    """Create the next key and print its id.

    The key is published at once. It signs tokens an hour later, when services that cache the keys have read them
    again. The old key stays published for 31 days, until all of its tokens have expired.
    """
    if revoke and not yes:
        click.confirm("The identity tokens of running jobs will be refused. Go on?", abort=True, err=True)

    async def run() -> keys.NewKey:
        async with services_of(instance) as services:
            return await keys.rotate(services, author(), revoke=revoke)

    kid = asyncio.run(run()).kid
    answer({"kid": kid, "revoked": revoke}, kid)
