"""What operators do with jobs: make room by removing the logs and artifacts of old ones."""

import asyncio
import datetime
import sys

import click

from api_server.ci.jobs.upkeep import remove_before
from forgelet.frame import Group
from forgelet.instance import Instance
from forgelet.output import answer

_DAY = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"])
#: Seconds; finding old jobs among millions may take a while.
_STATEMENT_TIMEOUT = 600


@click.group(cls=Group)
def jobs() -> None:
    """Jobs: remove the logs and artifacts of old ones."""


@jobs.command("remove-data")
@click.option(
    "--before", type=_DAY, required=True, help="Jobs that finished before this day (UTC) are meant."
)
@click.option("--dry-run", is_flag=True, help="Only says what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def remove_data(instance: Instance, before: datetime.datetime, *, dry_run: bool, yes: bool) -> None:
    """Removes the logs and artifacts of jobs that finished before a day; the jobs stay.

    The API forgets them at once; their bytes are deleted by the server's background work. May be stopped at any
    moment and started again: it goes on where it was.
    """
    if not dry_run and not yes:
        click.confirm(
            f"Remove the logs and artifacts of all jobs that finished before {before:%Y-%m-%d}?", abort=True
        )
    found, size = asyncio.run(_remove(instance, before.replace(tzinfo=datetime.UTC), dry_run=dry_run))
    verb = "would be removed" if dry_run else "removed"
    said = {"jobs": found, "bytes": size, "removed": not dry_run}
    answer(said, f"{verb}: {size:,} bytes of {found:,} jobs")


async def _remove(instance: Instance, moment: datetime.datetime, *, dry_run: bool) -> tuple[int, int]:
    found = size = 0
    async with instance.database(statement_timeout=_STATEMENT_TIMEOUT) as connected:
        async for removed in remove_before(connected, moment, dry_run=dry_run):
            found += removed.jobs
            size += removed.bytes
            if sys.stderr.isatty():
                click.echo(f"\r{found:,} jobs, {size:,} bytes", nl=False, err=True)
    if found and sys.stderr.isatty():
        click.echo(err=True)
    return found, size
