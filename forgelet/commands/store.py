"""What operators do with stored objects: sweep away those that no row names, and hear of rows whose object is gone."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import click

from api_server.git.repositories import Repositories
from api_server.state.errors import Unavailable
from api_server.state.object_store import open_objects
from api_server.state.objects import Objects
from api_server.state.sweep import at_least, missing, sweep
from forgelet import output
from forgelet.frame import Group
from forgelet.instance import Instance

#: Seconds.
_STATEMENT_TIMEOUT = 600


@click.group("store", cls=Group)
def store() -> None:
    """Stored objects: logs, artifacts and files of Git LFS."""


@store.command("sweep")
@click.option("--dry-run", is_flag=True, help="Only says what would be removed.")
@click.pass_obj
def sweep_command(instance: Instance, *, dry_run: bool) -> None:
    """Removes stored objects that no row names, and files of uploads that were cut off.

    Nothing younger than the setting orphan_age, or than an hour, is touched, so the server may run meanwhile. May be
    stopped at any moment and started again.
    """
    with _store_that_answers():
        removed = asyncio.run(_sweep(instance, dry_run=dry_run))
    count = sum("key" in one for one in removed)
    size = sum(one["bytes"] for one in removed)
    verb = "would be removed" if dry_run else "removed"
    lines = [
        f"{one['key']}: {one['bytes']:,} bytes, no row names it"
        if "key" in one
        else f"{one['file']}: an upload that was cut off"
        for one in removed
    ]
    lines.append(f"{verb}: {count:,} objects of {size:,} bytes, {len(removed) - count:,} unfinished uploads")
    output.answer({"dry_run": dry_run, "removed": removed}, "\n".join(lines))


@store.command("check")
@click.pass_obj
def check(instance: Instance) -> None:
    """Looks for the object of every row, one request each. Ends with status 1 where one is missing, and names it."""
    with _store_that_answers():
        lost = asyncio.run(_missing(instance))
    output.table(["kind", "key"], lost, empty="All objects that rows name are there.")
    if lost:
        raise click.ClickException(f"{len(lost):,} objects are missing")


async def _sweep(instance: Instance, *, dry_run: bool) -> list[dict[str, Any]]:
    settings, removed = instance.api_settings, []
    root = Repositories(settings.data_dir / "repositories").root
    async with instance.database(statement_timeout=_STATEMENT_TIMEOUT) as connected:
        with output.progress("Looking at stored objects") as done:
            age = at_least(settings.orphan_age)
            async for swept in sweep(connected, _objects(instance), age, root, dry_run=dry_run):
                removed += [{"key": one.key, "bytes": one.size} for one in swept.objects]
                removed += [{"file": str(file), "bytes": 0} for file in swept.unfinished]
                done(len(swept.objects) + len(swept.unfinished))
    return removed


async def _missing(instance: Instance) -> list[dict[str, Any]]:
    async with instance.database(statement_timeout=_STATEMENT_TIMEOUT) as connected:
        return [{"kind": kind, "key": key} async for kind, key in missing(connected, _objects(instance))]


def _objects(instance: Instance) -> Objects:
    settings = instance.api_settings
    return open_objects(settings.object_store_url, settings.data_dir, timeout=settings.object_store_timeout)


@contextlib.contextmanager
def _store_that_answers() -> Iterator[None]:
    try:
        yield
    except Unavailable as problem:
        raise click.ClickException(": ".join(filter(None, (str(problem), problem.cause)))) from None
