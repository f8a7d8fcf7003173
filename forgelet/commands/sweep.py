"""What operators do with stored objects: sweep away those that no row names, and hear of rows whose object is gone."""

import asyncio

import click

from api_server.state.errors import Unavailable
from api_server.state.objects import open_objects
from api_server.state.sweep import at_least, missing, sweep
from forgelet.frame import Command
from forgelet.instance import Instance

#: Seconds.
_STATEMENT_TIMEOUT = 600


@click.command("sweep", cls=Command)
@click.option("--dry-run", is_flag=True, help="Only says what would be removed.")
@click.option(
    "--missing", "check", is_flag=True, help="Also looks for the object of every row: one request each."
)
@click.pass_obj
def sweep_command(instance: Instance, *, dry_run: bool, check: bool) -> None:
    """Removes stored objects that no row names, and files of uploads that were cut off.

    Nothing younger than the setting orphan_age, or than an hour, is touched, so the server may run meanwhile. May be
    stopped at any moment and started again. Ends with status 1 where a row's object is missing, and names it.
    """
    try:
        lost = asyncio.run(_run(instance, dry_run=dry_run, check=check))
    except Unavailable as problem:
        raise click.ClickException(f"{problem}: {problem.cause}") from None
    if lost:
        raise click.ClickException(f"{lost:,} objects are missing")


async def _run(instance: Instance, *, dry_run: bool, check: bool) -> int:
    """How many objects are missing."""
    settings = instance.api_settings
    objects = open_objects(
        settings.object_store_url, settings.data_dir, timeout=settings.object_store_timeout
    )
    count = size = unfinished = lost = 0
    async with instance.database(statement_timeout=_STATEMENT_TIMEOUT) as connected:
        async for swept in sweep(
            connected,
            objects,
            at_least(settings.orphan_age),
            settings.data_dir / "repositories",
            dry_run=dry_run,
        ):
            for one in swept.objects:
                click.echo(f"{one.key}: {one.size:,} bytes, no row names it")
            for file in swept.unfinished:
                click.echo(f"{file}: an upload that was cut off")
            count += len(swept.objects)
            size += sum(one.size for one in swept.objects)
            unfinished += len(swept.unfinished)
        verb = "would be removed" if dry_run else "removed"
        click.echo(f"{verb}: {count:,} objects of {size:,} bytes, {unfinished:,} unfinished uploads")
        if check:
            async for kind, key in missing(connected, objects):
                click.echo(f"{key}: missing, of {kind}")
                lost += 1
    return lost
