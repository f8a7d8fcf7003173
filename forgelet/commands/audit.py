"""Commands for the audit trail: verification, export, removal of old months."""

import asyncio
import datetime
import errno
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from api_server.audit import chain, exports, queries
from api_server.state.database import Database
from api_server.state.errors import Unavailable
from api_server.state.object_store import open_objects
from forgelet.frame import Group, answer, progress, table, wants_json
from forgelet.instance import Instance

ResultT = TypeVar("ResultT")
#: The time limit of statements, in seconds: counting or locking a month of events may take long.
_STATEMENT_TIMEOUT = 3600
_DAY = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"])


@click.group(cls=Group)
def audit() -> None:
    """Verify the audit trail, export its events, remove old ones."""


@audit.command()
@click.option(
    "--expect", metavar="HEAD", help="A head from an earlier run, which the chain must still contain."
)
@click.pass_obj
def verify(instance: Instance, expect: str | None) -> None:
    """Check every event against the chain of hashes.

    The chain is also compared with its heads in the object store, which the service stores every hour.

    The command prints the head of the chain. Store it where neither the owner of the database nor that of the object
    store can change it, and pass it as --expect the next time. If something is broken or missing, the command names
    it and exits with status 1.
    """
    try:
        expected = [chain.Head.parse(expect)] if expect else []
    except ValueError as problem:
        raise click.BadParameter(str(problem), param_hint="--expect") from None

    async def run(db: Database) -> tuple[chain.Verdict, list[chain.Head]]:
        settings = instance.api_settings
        heads = await chain.kept_heads(open_objects(settings.object_store_url, settings.data_dir))
        with progress("events") as report:
            return await chain.verify(db, [*heads, *expected], report), heads

    result, heads = _with_database(instance, run)
    if result.problem:
        raise _broken(result.problem)
    removed = f", {result.removed} of them exported and removed" if result.removed else ""
    counts = {"events": result.head.position, "removed": result.removed, "kept_heads": len(heads)}
    text = f"intact: {result.head.position} events{removed}, {chain.agreement(heads)}; head {result.head}"
    answer({"head": str(result.head), **counts}, text)


@audit.command()
@click.option("--since", type=_DAY, default="1970-01-01", help="First moment (UTC), for instance 2026-01-01.")
@click.option("--until", type=_DAY, help="Export events before this moment (UTC); default is now.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write; default is standard output.",
)
@click.pass_obj
def export(
    instance: Instance,
    since: datetime.datetime,
    until: datetime.datetime | None,
    output: Path | None,
) -> None:
    """Write events as NDJSON, oldest first. Each line is a JSON object; its SHA-256 is its digest in the chain."""
    start = since.replace(tzinfo=datetime.UTC)

    async def run(db: Database) -> exports.Exported:
        end = until.replace(tzinfo=datetime.UTC) if until else db.now
        with progress("events", await queries.count_events(db, start, end)) as report:
            async with db.transaction() as transaction:
                if output:
                    return await exports.export_to_file(transaction, start, end, output, report)
                return await exports.export(transaction, start, end, sys.stdout.buffer, report)

    exported = _with_database(instance, run)
    click.echo(f"{exported.events} events, SHA-256 {exported.sha256}", err=True)


@audit.command()
@click.option("--before", type=_DAY, required=True, help="Remove whole months before this day (UTC).")
@click.option(
    "--export-to",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    required=True,
    help="Folder for the exported files, one for each month.",
)
@click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask.")
@click.pass_obj
def remove(instance: Instance, before: datetime.datetime, export_to: Path, *, is_confirmed: bool) -> None:
    """Export the events of old months, then remove them. Their chain stays, and an event records the removal."""
    moment = before.replace(tzinfo=datetime.UTC)

    async def months(db: Database) -> list[str]:
        if moment > db.now:
            raise click.BadParameter("lies in the future", param_hint="--before")
        return [partition.name for partition in await queries.old_partitions(db, moment)]

    async def run(db: Database) -> list[dict[str, Any]]:
        removed = []
        if (problem := (await chain.verify(db)).problem) is not None:
            raise exports.BrokenTrail(problem)
        partitions = await queries.old_partitions(db, moment)
        for partition in partitions:
            with progress(partition.name) as report:
                exported = await exports.remove_partition(db, partition, export_to, report)
            row = {"month": partition.name, "events": exported.events, "sha256": exported.sha256}
            removed.append(row)
            if not wants_json():  # report each month as soon as it is done
                click.echo(f"{row['month']}: {row['events']} events, SHA-256 {row['sha256']}")
        return removed

    names = _with_database(instance, months)
    if names and not is_confirmed:
        click.confirm(f"Remove {', '.join(names)} from the database?", abort=True, err=True)
    removed = _with_database(instance, run) if names else []
    if wants_json() or not removed:
        table(["month", "events", "sha256"], removed, empty="There is no whole month before that day.")


def _with_database(instance: Instance, work: Callable[[Database], Awaitable[ResultT]]) -> ResultT:
    async def run() -> ResultT:
        async with instance.database(statement_timeout=_STATEMENT_TIMEOUT) as db:
            return await work(db)

    try:
        return asyncio.run(run())
    except exports.BrokenTrail as problem:
        raise _broken(str(problem)) from None
    except OSError as problem:
        if problem.errno == errno.EPIPE:  # the reader of standard output has ended
            raise
        suffix = f": {problem.filename}" if problem.filename else ""
        raise click.ClickException(f"The events cannot be written: {problem.strerror}{suffix}") from None
    except Unavailable as problem:
        reason = str(problem.__cause__).strip().partition("\n")[0]
        raise click.ClickException(f"{problem}: {reason}") from None


def _broken(problem: str) -> click.ClickException:
    return click.ClickException(f"The audit trail is broken: {problem}")
